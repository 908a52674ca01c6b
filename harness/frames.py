"""Which frames are the user's own, and where somebody stands in words of the user's code."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass

_HARNESS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_PROGRAMS = os.path.dirname(os.path.abspath(sys.executable)) + os.sep
_STDLIB = os.path.realpath(sysconfig.get_paths()["stdlib"]) + os.sep
#: Functions of libraries that tell a reader nothing about what is being done.
_THIN = {"wrapper", "inner", "_fn", "decorate_context", "_call_impl", "_wrapped_call_impl", "new_test_method"}


@dataclass(frozen=True)
class Frame:
    """One line of a stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{os.path.basename(self.file)}:{self.line}"


def is_users(file: str) -> bool:
    """Whether a person who writes tests would call this file theirs."""
    if "site-packages" in file or "dist-packages" in file or file.startswith(("<", _HARNESS, _PROGRAMS)):
        return False
    return not os.path.realpath(file).startswith((_STDLIB, _HARNESS))


def is_ours(file: str) -> bool:
    """Whether a file is everyrank's harness."""
    return file.startswith(_HARNESS)


def standing(stack: Iterable[Frame]) -> str:
    """``all_reduce at test_x.py:12`` for a stack, innermost frame first."""
    called = ""
    innermost: Frame | None = None
    for frame in stack:
        innermost = innermost or frame
        if is_users(frame.file):
            return f"{called or frame.function} at {frame}"
        if frame.function not in _THIN:
            called = frame.function
    return f"{innermost.function} at {innermost}" if innermost else "nowhere to be seen"


def users_frame(up: int) -> str:
    """Where the user's code called, from ``up`` frames above the caller outwards."""
    frame = sys._getframe(up)
    while frame.f_back is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return str(Frame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
