"""The exceptions of a call that can compare nothing: by what it was given, or by a fault of its own."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from types import FrameType


class Unusable(ValueError):
    """What parity was given cannot be compared; the message says what to write instead."""

    __module__ = "everyrank.parity"  # where users import it from: a failure begins with this name


class Defect(RuntimeError):
    """Parity itself has failed, and knows nothing of the user's code; the message asks for a report."""

    __module__ = "everyrank.parity"


#: Functions of ours that only hand on what others call: who called them is who was at it.
_HAND_ON = frozenset({"__torch_dispatch__", "__torch_function__", "apart", "watched", "<lambda>"})

#: Functions of ours that run the user's code or reach other ranks: what torch raises there is none of our faults.
_RUN_THEIRS = frozenset(
    {
        *(
            "_backward",
            "_called",
            "_losses",
            "_made",
            "_microbatches",
            "_number",
            "_returned",
            "_train",
            "_weight_of_parts",
            "_with_masks",
        ),
        *("all_ranks", "checked", "close", "decide", "fresh", "gather", "in_lone_world", "lone_world"),
        *("running_in", "share_of", "whole_batch", "handed", "build", "go_on", "loop", "plain_states"),
    }
)

#: Functions of ours that call what the user gives, which may be torch's own: a class of optimizers, or a wrapper.
_CALL_THEIRS = frozenset({"end", "optimizers_of", "parallelize", "reference", "step"})


def in_a_line(error: BaseException) -> str:
    """Return the class of an error and the first line of its text."""
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


def defect(error: BaseException) -> Defect | None:
    """Return what is raised instead of an error in the code of parity; None if the error is of the user's code."""
    if isinstance(error, Defect):
        return error
    if not isinstance(error, Exception):
        return None  # who ends a process or a test means it
    every = [*traceback.walk_tb(error.__traceback__)]
    frames = [(frame, line) for frame, line in every if not _is_below(frame)]
    while frames and _is_ours(frames[-1][0]) and frames[-1][0].f_code.co_name in _HAND_ON:
        frames.pop()
    if not frames or not _is_ours(frames[-1][0]) or frames[-1][0].f_code.co_name in _RUN_THEIRS:
        return None
    if frames[-1][0].f_code.co_name in _CALL_THEIRS and _is_below(every[-1][0]):
        return None
    way = [f"{Path(frame.f_code.co_filename).name}:{line}" for frame, line in frames if _is_ours(frame)]
    return Defect(
        f"parity has failed by a fault of its own, and says nothing of your code: {in_a_line(error)}, at {way[-1]}. "
        f"Please report it, with these lines and, if you can, the test.\nparity came there by {', '.join(way)}"
    )


def without_lines(error: Exception) -> Unusable | Defect | None:
    """Return what is raised instead of an error, without the lines that found it out; None: the error as it is."""
    found = error if isinstance(error, Unusable) else defect(error)
    return found and found.with_traceback(None)


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith(("everyrank.parity.", "everyrank.suites.compare."))


def _is_below(frame: FrameType) -> bool:
    """Return whether a frame is of torch or of Python, which do as they are asked."""
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    return package == "torch" or package in sys.stdlib_module_names - {"__main__"}
