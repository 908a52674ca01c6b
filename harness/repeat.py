"""The command line that runs a test again, with the same seeds."""

from __future__ import annotations

import os
import shlex

import pytest
from everyrank.stash import REPEAT, REPEAT_OPTIONS


def repeat_line(item: pytest.Item, seed: int) -> str:
    """As it would be typed in the folder in which this run was started."""
    options = [*item.stash.get(REPEAT_OPTIONS, []), *([f"--world-seed={seed}"] if seed else [])]
    again = item.stash.get(REPEAT, None)
    return shlex.join(["pytest", *_named(item), *options]) if again is None else again(options)


def lasting_id(item: pytest.Item) -> str:
    """The same however the test was named: of one of an installed package, pytest's own id holds the end alone."""
    module = _far(item)
    return f"{module}::{item.nodeid.partition('::')[2]}" if module else item.nodeid


def _named(item: pytest.Item) -> list[str]:
    if _far(item) and item.config.getoption("pyargs"):
        return ["--pyargs", lasting_id(item)]
    path, _, name = item.nodeid.partition("::")
    return [f"{os.path.relpath(item.config.rootpath / path, item.config.invocation_params.dir)}::{name}"]


def _far(item: pytest.Item) -> str:
    """The module of a test outside of the folder that ids are relative to."""
    if item.path.is_relative_to(item.config.rootpath):
        return ""
    return getattr(getattr(item, "module", None), "__name__", "")
