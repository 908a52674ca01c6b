"""Find the exception that the main thread is handling while it waits: in ``finally``, ``except`` or at a ``with``."""

from __future__ import annotations

import sys
import threading
import traceback
from typing import Any

from everyrank.stack.frames import Frame, is_users
from everyrank.wire.messages import Handled
from everyrank.wire.truncate import one_line

#: Values whose text runs no code but Python's own: another thread than theirs asks for it.
_PLAIN = (str, bytes, int, float, complex, type(None))
_MOST = 120


def handled() -> Handled | None:
    """Return the exception that the main thread is handling, if the user's code raised it or let it through.

    A library that handles its own exceptions, while it waits for something, handles none of the user's.
    """
    exceptions: dict[int, Any] = getattr(sys, "_current_exceptions", dict)()
    error = exceptions.get(threading.main_thread().ident or 0)
    if isinstance(error, tuple):  # before Python 3.12
        error = error[1]
    if not isinstance(error, BaseException):
        return None
    lines = traceback.walk_tb(error.__traceback__)
    frames = [Frame(frame.f_code.co_filename, line, frame.f_code.co_name) for frame, line in lines]
    location = next((str(frame) for frame in reversed(frames) if is_users(frame.file)), "")
    return Handled(_brief(error), location) if location else None


def _brief(error: BaseException) -> str:
    name = type(error).__name__
    if not all(isinstance(argument, _PLAIN) for argument in error.args) or not _is_pythons(type(error).__str__):
        return name
    message = str(error)
    return one_line(f"{name}: {message}", _MOST) if message.strip() else name


def _is_pythons(method: object) -> bool:
    return type(method) is type(BaseException.__str__)
