"""Read a fault from its text. Every run with the mark imports this module, so it imports little."""

from __future__ import annotations

import importlib
import re
import signal
from collections.abc import Sequence
from typing import Any

from everyrank.errors import MisuseError
from everyrank.model.fault import (
    COLLECTIVE,
    CUTS,
    DIES,
    DROPS,
    EACH,
    EXITS,
    FILE,
    FLIPS,
    FULL,
    KEY,
    LATE,
    RAISES,
    WAITS,
    Fault,
)
from everyrank.model.ranks import ordinal


def _which(*points: str) -> str:
    return rf"(?:its (?P<nth>[1-9]\d*(?:st|nd|rd|th))|(?P<each>each)) (?P<point>{'|'.join(points)})"


#: What is opened is not closed at a known time: nothing happens after a file.
_AT = rf"(?P<at>at|after(?! [\w ]* {FILE})) {_which(COLLECTIVE, FILE, KEY)}"
#: The sentences that are understood, each after "rank 1".
_SENTENCES = {
    DIES: re.compile(rf"dies(?: by (?P<value>SIG[A-Z0-9]+))? {_AT}"),
    EXITS: re.compile(rf"exits with (?P<value>\d+) {_AT}"),
    RAISES: re.compile(rf"raises (?P<value>[A-Za-z_][\w.]*) {_AT}"),
    WAITS: re.compile(rf"waits (?P<value>\d+(?:\.\d+)?) s before {_which(COLLECTIVE, FILE, KEY)}"),
    CUTS: re.compile(rf"is cut off at {_which(COLLECTIVE)}"),
    FLIPS: re.compile(rf"gets a flipped bit from {_which(COLLECTIVE)}"),
    LATE: re.compile(rf"gets a late result from {_which(COLLECTIVE)}"),
    FULL: re.compile(rf"has a full disk at {_which(FILE)}"),
    DROPS: re.compile(rf"drops {_which(KEY)}"),
}
_RANK = re.compile(r"rank (?P<rank>\d+) ")
#: The attribute of an exception that a fault has raised.
_RAISED = "everyrank_fault"
#: The sentences as they are named to a user.
_UNDERSTOOD = (
    "rank 1 dies at its 3rd collective",
    "rank 1 dies by SIGTERM at its 3rd collective",
    "rank 1 exits with 3 at its 3rd collective",
    "rank 1 raises RuntimeError at its 3rd collective",
    "rank 1 waits 0.5 s before its 3rd collective",
    "rank 1 is cut off at its 3rd collective",
    "rank 1 gets a flipped bit from its 3rd collective",
    "rank 1 gets a late result from its 3rd collective",
    "rank 1 has a full disk at its 3rd file",
    "rank 1 drops its 3rd key",
)


def fault(text: object) -> Fault:
    """Return the fault that a text states. Raise MisuseError if it is not understood."""
    found = _read(text) if isinstance(text, str) else None
    if found is not None:
        return found
    known = ", ".join(f'"{sentence}"' for sentence in _UNDERSTOOD)
    raise MisuseError(
        f"the mark faults: {text!r} is not understood; what is understood is {known}, "
        'with "after" for "at", "file" or "key" for "collective" in the first five, and "each" for "its 3rd"'
    )


def _read(text: str) -> Fault | None:
    rank = _RANK.match(text)
    if rank is None:
        return None
    for act, sentence in _SENTENCES.items():
        if (match := sentence.fullmatch(text, rank.end())) is not None:
            groups = match.groupdict()
            number = EACH if groups["each"] else int(groups["nth"][:-2])
            value = _checked(act, groups.get("value") or "")
            right = number == EACH or ordinal(number) == groups["nth"]
            planned = Fault(int(rank["rank"]), act, number, value, groups.get("at") == "after", groups["point"])
            return planned if right else None
    return None


def faults(texts: Sequence[object]) -> tuple[Fault, ...]:
    """Return the faults of one test. Raise MisuseError if they cannot be planned together."""
    planned = tuple(map(fault, texts))
    if not planned:
        raise MisuseError('the mark faults takes texts such as "rank 1 dies at its 3rd collective"')
    if len(planned) > 1 and any(each.number == EACH for each in planned):
        raise MisuseError('the mark faults: a fault at each point, as in "each collective", stands alone')
    points = [(each.rank, each.point, each.number) for each in planned]
    if len(set(points)) < len(points):
        raise MisuseError("the mark faults: a rank has one fault at a point, not two")
    return planned


def _checked(act: str, value: str) -> str:
    """Return the value of an act. Raise MisuseError if there is none such."""
    if act == DIES:
        value = value or "SIGKILL"
        if value not in signal.Signals.__members__:
            raise MisuseError(f"the mark faults: there is no signal {value} here")
    if act == EXITS and int(value) > 255:
        raise MisuseError(f"the mark faults: an exit code is at most 255, not {value}")
    if act == RAISES:
        exception(value)
    return value


def exception(name: str) -> type[Exception]:
    """Return the class of an exception: RuntimeError, or a dotted name such as torch.distributed.DistNetworkError."""
    module, _, attribute = name.rpartition(".")
    try:
        found: Any = getattr(importlib.import_module(module or "builtins"), attribute)
        made = found("made to try it")
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
        raise MisuseError(f"the mark faults: {name} cannot be raised with a text ({problem})") from None
    if not isinstance(made, Exception):
        raise MisuseError(f"the mark faults: {name} is no exception")
    return type(made)


def planned_error(fault: Fault) -> Exception:
    """Make the exception of a fault."""
    error = exception(fault.value)(f"{fault.text}, as planned")
    setattr(error, _RAISED, True)
    return error


def is_planned(error: BaseException) -> bool:
    """Return whether a fault has raised this exception."""
    return hasattr(error, _RAISED)
