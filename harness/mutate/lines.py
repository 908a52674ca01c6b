"""The user's line that made a call of a group."""

from __future__ import annotations

import re
import sys
from types import CodeType, FrameType

from everyrank.stack.frames import Frame, is_ours, is_users

#: torch's files, but for those of its tests.
_TORCH = re.compile(r"/torch/(?!testing/)")


def users_line() -> tuple[CodeType, int]:
    """Return the innermost line of the user's; if there is none, the innermost one of a library's test."""
    frame: FrameType | None = sys._getframe(2)
    tests = None
    while frame is not None and not is_users(file := frame.f_code.co_filename):
        if tests is None and not is_ours(file) and not _TORCH.search(file):
            tests = frame
        frame = frame.f_back
    found = frame or tests or sys._getframe(2)
    return found.f_code, found.f_lineno


def location(code: CodeType, line: int) -> str:
    """Return a line as texts name it: model.py:88."""
    return str(Frame(code.co_filename, line, code.co_name))
