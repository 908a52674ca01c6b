"""Decides which warnings of a rank are filed, and reduces their texts so that equal warnings are reported once.

pytest applies its filters while a test runs. Code that raises a warning under ``simplefilter("always")``, as torch
does for some deprecations, bypasses them, and leaks are found after the test: so they are applied here again.
"""

from __future__ import annotations

import re
import sys
from types import ModuleType
from typing import Any

import pytest
from _pytest.config import parse_warning_filter
from everyrank.wire.messages import Warned
from everyrank.wire.truncate import truncate

#: From this port on, systems choose ports for sockets that ask for none: these numbers differ from run to run.
_CHOSEN_PORTS = 32768

_HOST = r"(?:\d{1,3}(?:\.\d{1,3}){3}|\[[0-9a-fA-F]*:[0-9a-fA-F:.]*\]|localhost)"
_PORT = re.compile(rf"({_HOST}:|\b[lr]addr=\('[^']*', |\bport[ =:]{{1,2}})(\d{{5}})\b")
_CHANCE = re.compile(
    r"(\bpid(?: |=|: ?)(?=\d)|\b(?:sub)?process(?: |=|: ?)(?=\d{3})|\bfd=(?=\d)|\b0x(?=[0-9a-f]{6})|\bThread-(?=\d))"
    r"[0-9a-f]+\b",
    re.IGNORECASE,
)


def as_warned(message: Any, when: str) -> Warned:
    """Convert a warning that pytest recorded to the form that a rank files."""
    category = message.category
    text = truncate(str(message.message))
    return Warned(category.__name__, category.__module__, text, message.filename, message.lineno, when)


def is_ignored(item: pytest.Item, message: Any) -> bool:
    """Return whether pytest's filters ignore a warning for a test: the last that fits decides, as it does there."""
    config = item.config
    filters = [(arg, False) for arg in config.getini("filterwarnings")]
    filters += [(arg, True) for arg in config.known_args_namespace.pythonwarnings or ()]
    filters += [(arg, False) for mark in item.iter_markers("filterwarnings") for arg in mark.args]
    for arg, escape in reversed(filters):
        action, text, category, module, line = parse_warning_filter(arg, escape=escape)
        if (
            issubclass(message.category, category)
            and re.match(text, str(message.message), re.IGNORECASE)
            and re.match(module, _module(message.filename) if module else "")
            and line in (0, message.lineno)
        ):
            return action == "ignore"
    return False


def _module(filename: str) -> str:
    """Return the name of the module in this file, or the file's name if no module is known."""
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and vars(module).get("__file__") == filename:
            return name
    return filename.removesuffix(".py")


def folded(text: str) -> str:
    """Remove what differs from run to run: ports that the system chose, process ids, descriptors, addresses and
    the numbers of unnamed threads."""
    text = _PORT.sub(lambda match: match[1] + (match[2] if int(match[2]) < _CHOSEN_PORTS else "..."), text)
    return _CHANCE.sub(r"\1...", text)
