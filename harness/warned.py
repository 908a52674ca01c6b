"""A rank's warnings: which of them are filed, and in which words, so that alike ones are one.

pytest applies the marks ``filterwarnings`` while a test runs. Code that raises its warning under
``simplefilter("always")``, as torch does for some of its deprecations, passes them by: what a mark ignores is left
out here as well.
"""

from __future__ import annotations

import re
import sys
from types import ModuleType
from typing import Any

import pytest
from _pytest.config import parse_warning_filter
from everyrank.bounds import truncate
from everyrank.record import Warned

#: From this port on, Linux and others choose for a socket that asks for none: it says nothing, and differs each time.
_CHOSEN_PORTS = 32768

_HOST = r"(?:\d{1,3}(?:\.\d{1,3}){3}|\[[0-9a-fA-F]*:[0-9a-fA-F:.]*\]|localhost)"
_PORT = re.compile(rf"({_HOST}:|\b[lr]addr=\('[^']*', |\bport[ =:]{{1,2}})(\d{{5}})\b")
_CHANCE = re.compile(
    r"(\bpid(?: |=|: ?)(?=\d)|\b(?:sub)?process(?: |=|: ?)(?=\d{3})|\bfd=(?=\d)|\b0x(?=[0-9a-f]{6})|\bThread-(?=\d))"
    r"[0-9a-f]+\b",
    re.IGNORECASE,
)


def warned(message: Any, when: str) -> Warned:
    """A warning as pytest recorded it, as it is filed."""
    category = message.category
    text = truncate(str(message.message))
    return Warned(category.__name__, category.__module__, text, message.filename, message.lineno, when)


def is_ignored(item: pytest.Item, message: Any) -> bool:
    """Whether the marks ``filterwarnings`` of a test say so: of those that fit, the one that pytest puts first."""
    filters = [arg for mark in item.iter_markers("filterwarnings") for arg in mark.args]
    for arg in reversed(filters):
        action, text, category, module, line = parse_warning_filter(arg, escape=False)
        if (
            issubclass(message.category, category)
            and re.match(text, str(message.message), re.IGNORECASE)
            and re.match(module, _module(message.filename) if module else "")
            and line in (0, message.lineno)
        ):
            return action == "ignore"
    return False


def _module(filename: str) -> str:
    """The name of the module that this file is, as far as this process knows."""
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType) and vars(module).get("__file__") == filename:
            return name
    return filename.removesuffix(".py")


def folded(text: str) -> str:
    """Without what differs from run to run: ports that the system chose, ids of processes, descriptors, addresses,
    numbers of nameless threads."""
    text = _PORT.sub(lambda found: found[1] + (found[2] if int(found[2]) < _CHOSEN_PORTS else "..."), text)
    return _CHANCE.sub(r"\1...", text)
