"""The files that a script opens for writing: each size writes them in the same place, and at the same time."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from everyrank.parity.values.lines import line_of_caller

_WRITES = os.O_WRONLY | os.O_RDWR


def watch(wrote: Callable[[str, str], None], kept: str) -> None:
    """Let a function have each path that this process writes, and the line; not those of the record, or of caches."""
    process, within = os.getpid(), threading.local()
    apart = tuple(
        os.path.realpath(each) + os.sep for each in (Path(kept).parent, "/dev", "/proc", Path.home() / ".cache")
    )

    def note(path: Any) -> None:
        if (
            os.getpid() != process
            or getattr(within, "notes", False)
            or not isinstance(path, (str, bytes, os.PathLike))
        ):
            return
        within.notes = True
        try:
            found = os.path.realpath(os.fsdecode(path))
            if not found.startswith(apart) and "__pycache__" not in found and (line := line_of_caller()):
                wrote(found, line)
        finally:
            within.notes = False

    def seen(event: str, given: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(given[2], int) and given[2] & _WRITES:
            note(given[0])

    def save(inner: Callable[..., Any], obj: Any, f: Any, *given: Any, **named: Any) -> Any:
        note(f)  # it is opened beside Python
        return inner(obj, f, *given, **named)

    torch.save = torch.serialization.save = functools.wraps(torch.save)(functools.partial(save, torch.save))
    sys.addaudithook(seen)


def remarks(sizes: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yield what is to be said of files that several sizes have written; each has its paths, with lines."""
    lines = {path: line for written in sizes for path, line in written.items()}
    several = [path for path in lines if sum(path in written for written in sizes) > 1]
    if several:
        names = ", ".join(f"{os.path.relpath(path)} ({lines[path]})" for path in several[:3])
        more = f" and {len(several) - 3} more" if len(several) > 3 else ""
        it = "it" if len(several) == 1 else "them"
        yield f"each size writes {names}{more} in this place: what is read of {it} may be another size's"
