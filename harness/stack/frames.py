"""Find the user's own frames in a stack, and describe a stack by the user's line in it."""

from __future__ import annotations

import itertools
import linecache
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from everyrank.stack.paths import is_of_library, shown
from everyrank.stack.running import called_name, iterated, only_call

_HARNESS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
#: Files whose functions see the calls of torch's groups: they stand between torch's frames, and do nothing else.
_SEES_CALLS = tuple(
    _HARNESS + os.path.join(*name)
    for name in (
        ("rank", "group_calls.py"),
        ("rank", "point_to_point.py"),
        ("rank", "sizes.py"),
        ("mutate", "operators.py"),
        ("mutate", "watcher.py"),
        ("faults", "planned.py"),
    )
)
#: Functions of libraries whose names do not describe what is being done.
_THIN = {
    "wrapper", "inner", "_fn", "decorate_context", "_call_impl", "_wrapped_call_impl", "new_test_method",
    "_no_grad_wrapper", "inner_func",
}  # fmt: skip
#: Python's import machinery has such files; and torch calls a module's forward() and its hooks by this function.
_IMPORTLIB = "<frozen importlib"
_CALLS_MODULE = "_call_impl"

#: Files in which a rank waits for other ranks, if its innermost frame is there; and their functions that do not wait.
_WAITS = (
    (re.compile(r"torch/distributed/(distributed_c10d|rendezvous)\.py$"), re.compile(r"get_|is_")),
    (re.compile(r"torch/distributed/(_functional_collectives(_impl)?|rpc/\w+)\.py$"), re.compile(r"get_|is_")),
    (re.compile(r"torch/futures/__init__\.py$"), re.compile(r"(?!wait)")),
    (re.compile(re.escape(_HARNESS) + r"channel\.py$"), re.compile(r"(?!_read)")),  # world.barrier()
)
#: Files in which a rank may or may not wait for other ranks: a backward under DDP, an operator of torch.
_MAY_WAIT = re.compile(r"torch/(autograd/graph|nn/parallel/distributed|_ops)\.py$")
#: The file in which torch waits for the workers of a loader.
_LOADER = re.compile(r"torch/utils/data/dataloader\.py$")
#: A user's line that may call a wait in C, such as that of a Work, which has no frame.
_CALLS_WAIT = re.compile(r"\.(wait|result)\(")


#: Files of Python's library in which a thread waits for another thread of its process.
_THREADS = re.compile(r"(threading|queue|concurrent/futures/\w+)\.py$")


@dataclass(frozen=True)
class Frame:
    """One line of a stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{shown(self.file)}:{self.line}"


def is_users(file: str) -> bool:
    """Return whether a file belongs to the user, not to a library or to the harness."""
    return not (is_ours(file) or is_of_library(file))


def is_ours(file: str) -> bool:
    """Return whether a file belongs to everyrank's harness."""
    return file.startswith(_HARNESS)


def only_sees(file: str) -> bool:
    """Return whether a file's frames are those of a group's method that everyrank watches."""
    return file in _SEES_CALLS


def waits(stack: Sequence[Frame]) -> bool | None:
    """Return whether a rank waits for other ranks; None if its stack does not show it."""
    if not stack:
        return None
    innermost = stack[0]
    for file, not_waiting in _WAITS:
        if file.search(innermost.file):
            return not not_waiting.match(innermost.function)
    if imports(stack):
        return False
    if _MAY_WAIT.search(innermost.file):
        return None
    if not is_users(innermost.file):
        return False
    line = linecache.getline(innermost.file, innermost.line)
    is_typed = innermost.file.startswith("<")  # whose lines may be unknown
    return None if (is_typed and not line) or _CALLS_WAIT.search(line) else False


def waits_for_threads(stack: Sequence[Frame]) -> bool:
    """Return whether a thread waits for another thread of its process, as in join()."""
    return bool(stack) and bool(_THREADS.search(stack[0].file)) and not is_users(stack[0].file)


def standing(stack: Iterable[Frame], called: str = "") -> str:
    """Describe a stack, innermost frame first: ``all_reduce at test_x.py:12``.

    ``called``: the name that the user's line calls, if known. It stands for functions whose names say nothing.
    """
    inner: list[Frame] = []
    stack = tuple(stack)
    batch = next_batch(stack)
    for frame in stack:
        if is_users(frame.file):
            return f"{batch or _operation(inner, frame, called) or frame.function} at {frame}"
        inner.append(frame)
    return f"{inner[0].function} at {inner[0]}" if inner else "at an unknown location"


def next_batch(stack: Sequence[Frame]) -> str:
    """Return "the next batch of loader" if a rank waits for the workers of a loader; otherwise an empty text."""
    inner = list(itertools.takewhile(lambda frame: not is_users(frame.file), stack))
    if not inner or not _LOADER.search(inner[-1].file) or inner[-1].function != "__next__":
        return ""
    user = stack[len(inner)] if len(inner) < len(stack) else None
    loader = iterated(user.file, user.line) if user is not None else ""
    return f"the next batch of {loader}" if loader else "the next batch"


def imports(stack: Sequence[Frame]) -> str:
    """Return the module that the user's line imports, or the library's; empty if a rank does not import."""
    library = itertools.takewhile(lambda frame: not is_users(frame.file), stack)
    outwards = list(library)[::-1]
    if not any(frame.file.startswith(_IMPORTLIB) for frame in outwards):
        return ""
    body = next((frame for frame in outwards if frame.function == "<module>"), None)
    if body is None:
        return "a module"
    return re.sub(r"(/__init__)?\.py$", "", shown(body.file)).replace(os.sep, ".")


def _operation(inner: list[Frame], user: Frame, called: str) -> str:
    """Name what the user's frame has called, by the frames of libraries above it, innermost first."""
    named = [frame for frame in inner if frame.function not in _THIN]
    if not named or not named[-1].function.startswith("_"):
        return named[-1].function if named else ""
    if any(frame.function == _CALLS_MODULE for frame in inner):
        return "forward"
    private = named[-1]
    public = (frame.function for frame in named if not frame.function.startswith(("_", "<")))
    return (
        called
        or called_name(only_call(user.file, user.line))
        or (_class_of(private) if private.function == "__init__" else "")
        or next(public, private.function)
    )


def _class_of(frame: Frame) -> str:
    """Return the class whose method a frame is in."""
    for number in range(frame.line, 0, -1):
        if match := re.match(r"class (\w+)", linecache.getline(frame.file, number)):
            return match[1]
    return ""


def users_frame(up: int) -> str:
    """Return the location of the nearest user's frame, from ``up`` frames above the caller outwards."""
    frame = sys._getframe(up)
    while frame.f_back is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return str(Frame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
