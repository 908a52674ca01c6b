"""The command line that runs a test again, with the same seeds."""

from __future__ import annotations

import os
import shlex

import pytest
from everyrank.declare.stash import REPEAT, REPEAT_OPTIONS


def repeat_line(item: pytest.Item, seed: int) -> str:
    """Return the command line, as a person would type it in the folder in which this run was started."""
    options = [*item.stash.get(REPEAT_OPTIONS, []), *([f"--world-seed={seed}"] if seed else [])]
    again = item.stash.get(REPEAT, None)
    return shlex.join(["pytest", *_arguments(item), *options]) if again is None else again(options)


def lasting_id(item: pytest.Item) -> str:
    """Return an id that does not depend on how the test was named on the command line.

    For a test of an installed package, pytest's own id holds only the end of the path.
    """
    module = _module_outside_root(item)
    return f"{module}::{item.nodeid.partition('::')[2]}" if module else item.nodeid


def _arguments(item: pytest.Item) -> list[str]:
    if _module_outside_root(item) and item.config.getoption("pyargs"):
        return ["--pyargs", lasting_id(item)]
    path, _, name = item.nodeid.partition("::")
    return [f"{os.path.relpath(item.config.rootpath / path, item.config.invocation_params.dir)}::{name}"]


def _module_outside_root(item: pytest.Item) -> str:
    """Return the module of a test outside of the root folder, to which ids are relative; "" for a test inside."""
    if item.path.is_relative_to(item.config.rootpath):
        return ""
    return getattr(getattr(item, "module", None), "__name__", "")
