"""The line of the user's code in which something happens."""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType

import torch
from everyrank.parity.errors import in_a_line

_TORCH, _OURS = os.path.dirname(torch.__file__) + os.sep, str(Path(__file__).parents[1]) + os.sep
_PYTHON, _INSTALLED = sysconfig.get_path("stdlib") + os.sep, sysconfig.get_path("purelib") + os.sep


def with_line(error: BaseException) -> str:
    """Return an error in a line, with the line of the user's code that it went through last, if there is one."""
    line = _last((frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__))
    return f"{in_a_line(error)}{line and f', at {line}'}"


#: Functions of ours that call what the user has given, and the argument that this is.
_ARGUMENTS = {
    "fresh": "model=",
    "_made": "parallelize= or load=",
    "optimizers_of": "optimizer=",
    "whole_batch": "batch=",
    "_backward": "loss=",
    "_train": "the step of optimizer=",
}


def argument_of(error: BaseException) -> str:
    """Return which argument of parity has raised an error; empty if that is not known."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    ours = [frame.f_code.co_name for frame in frames if frame.f_code.co_filename.startswith(_OURS)]
    return _ARGUMENTS.get(ours[-1], "") if ours else ""


def line_now() -> str:
    """Return the line of the user's code that parity runs now; empty if it runs none."""
    return _last((frame.f_code.co_filename, frame.f_lineno) for frame in reversed([*_called()]))


def runs_a_module() -> bool:
    """Return whether a module's forward runs now, inside of what parity calls."""
    return any(frame.f_code.co_name == "_call_impl" for frame in _called())


def _called() -> Iterator[FrameType]:
    """Yield the frames of what parity has called in this thread, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        is_ours = frame.f_code.co_filename.startswith(_OURS)
        # A mode of ours stands between the user's code and torch's, or what watches a function of torch's.
        is_between = frame.f_code.co_name.startswith(("__torch_", "watched", "refusal"))
        if is_ours and frame.f_code.co_filename != __file__ and not is_between:
            return
        yield frame
        frame = frame.f_back


def _last(lines: Iterable[tuple[str, int]]) -> str:
    found = ""
    for path, number in lines:
        if not _is_of_others(path):
            found = f"{os.path.relpath(path) if path.startswith(os.getcwd() + os.sep) else path}:{number}"
    return found


def _is_of_others(path: str) -> bool:
    if path.startswith(_PYTHON) and not path.startswith(_INSTALLED):
        return True
    return path.startswith(("<", _TORCH, _OURS))


def line_of_caller() -> str:
    """Return the line of a script that has called a function of ours, through whatever torch and Python do between.

    Of packages that are installed a line is returned only if the script has none.
    """
    frame: FrameType | None = sys._getframe(1)
    installed = ""
    while frame is not None:
        path = frame.f_code.co_filename
        if not _is_of_others(path):
            if not path.startswith(_INSTALLED):
                return _last([(path, frame.f_lineno)])
            installed = installed or f"{path.removeprefix(_INSTALLED)}:{frame.f_lineno}"
        frame = frame.f_back
    return installed
