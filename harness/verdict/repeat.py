"""The command line that runs a test again, with the same seeds and under the same options."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest
from everyrank.declare.stash import REPEAT, REPEAT_OPTIONS

#: Options that change how one test ends, by the names under which pytest keeps them: everyrank's own,
#: pytest-timeout's limit and pytest's. Options that choose tests or change what is printed are not among them.
_OPTIONS = {
    "adopt": "--adopt",
    "adopt_transports": "--adopt-transports",
    "launcher": "--launcher",
    "ray_address": "--ray-address",
    "ray_working_dir": "--ray-working-dir",
    "leaks": "--leaks",
    "require_gpus": "--require-gpus",
    "world_seed": "--world-seed",
    "timeout": "--timeout",
    "runxfail": "--runxfail",
    "noconftest": "--noconftest",
    "inifilename": "-c",
    "pythonwarnings": "-W",
}
#: A value that nobody wants to find in a log.
_SECRET = re.compile(r"token|secret|passw|credential|api.?key", re.IGNORECASE)


def repeat_line(item: pytest.Item) -> str:
    """Return the command line, as a person would type it in the folder in which this run was started."""
    options = [*item.stash.get(REPEAT_OPTIONS, []), *repeat_options(item.config)]
    again = item.stash.get(REPEAT, None)
    return shlex.join(["pytest", *_arguments(item), *options]) if again is None else again(options)


def repeat_options(config: pytest.Config) -> list[str]:
    """Return the options of this run that change how a test ends, with those that a conftest.py has added."""
    options = [
        text for name, option in _OPTIONS.items() for text in _texts(option, getattr(config.option, name, None))
    ]
    # From pytest 9 on, --strict-markers is an override, too; it changes no outcome, and often stands in addopts.
    overrides = [text for text in getattr(config.option, "override_ini", None) or [] if not text.startswith("strict")]
    # The controller of pytest-xdist adds plugins to each worker, with "no:" in front.
    plugins = [name for name in getattr(config.option, "plugins", None) or [] if not name.startswith("no:")]
    rootdir = getattr(config.option, "rootdir", None)
    if rootdir and os.path.realpath(rootdir) == os.path.realpath(config.invocation_params.dir):
        rootdir = None  # pytest finds it without help
    return [
        *options,
        *_texts("-o", overrides),
        *_texts("-p", plugins),
        *_texts("--rootdir", rootdir),
        *_added_by_users(config),
    ]


def _added_by_users(config: pytest.Config) -> Iterator[str]:
    """Yield the options in no group of their own: plugins make groups, a conftest.py usually does not."""
    parser: Any = getattr(config, "_parser", None)
    for option in getattr(getattr(parser, "_anonymous", None), "options", ()):
        value = getattr(config.option, option.dest, option.default)
        name = max(option.names(), key=len)
        if value != option.default and not _SECRET.search(name):
            yield from _texts(name, value)


def _texts(option: str, value: object) -> list[str]:
    """Return how a person types an option with this value; nothing if it is not set, or no text shows its value."""
    if isinstance(value, list):
        return [text for part in value for text in _texts(option, part)]
    if value is True:
        return [option]
    if not value or not isinstance(value, str | int | float | os.PathLike):
        return []
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return [f"{option}={text}"] if option.startswith("--") else [option, text]


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
