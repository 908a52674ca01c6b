"""Which frames are the user's own, and where somebody stands in words of the user's code."""

from __future__ import annotations

import linecache
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from everyrank.paths import is_librarys, shown

_HARNESS = os.path.dirname(os.path.abspath(__file__)) + os.sep
#: Functions of libraries that tell a reader nothing about what is being done.
_THIN = {"wrapper", "inner", "_fn", "decorate_context", "_call_impl", "_wrapped_call_impl", "new_test_method"}

#: Where a rank is while it waits for other ranks: the innermost file of its stack, and what in it does not wait.
_WAITS = (
    (re.compile(r"torch/distributed/(distributed_c10d|rendezvous)\.py$"), re.compile(r"get_|is_")),
    (re.compile(r"torch/distributed/(_functional_collectives(_impl)?|rpc/\w+)\.py$"), re.compile(r"get_|is_")),
    (re.compile(r"torch/futures/__init__\.py$"), re.compile(r"(?!wait)")),
    (re.compile(re.escape(_HARNESS) + r"channel\.py$"), re.compile(r"(?!_read)")),  # world.barrier()
)
#: What may be a wait for other ranks, and may not: a backward under DDP, an operator of torch.
_MAY_WAIT = re.compile(r"torch/(autograd/graph|nn/parallel/distributed|_ops)\.py$")
#: A line of the user's that calls a wait in C, which has no frame: that of a work, say.
_CALLS_WAIT = re.compile(r"\.(wait|result)\(")


@dataclass(frozen=True)
class Frame:
    """One line of a stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{shown(self.file)}:{self.line}"


def is_users(file: str) -> bool:
    """Whether a person who writes tests would call this file theirs."""
    return not (is_ours(file) or is_librarys(file))


def is_ours(file: str) -> bool:
    """Whether a file is everyrank's harness."""
    return file.startswith(_HARNESS)


def waits(stack: Sequence[Frame]) -> bool | None:
    """Whether a rank waits for other ranks; None where its stack does not tell."""
    if not stack:
        return None
    innermost = stack[0]
    for file, other in _WAITS:
        if file.search(innermost.file):
            return not other.match(innermost.function)
    if _MAY_WAIT.search(innermost.file):
        return None
    line = linecache.getline(innermost.file, innermost.line) if is_users(innermost.file) else ""
    return None if _CALLS_WAIT.search(line) else False


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
