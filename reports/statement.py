"""What a ledger's entry is to state of deviations that a run has shown: which text, which exception, how far off."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from everyrank.reports.model import DeviationPart

#: Characters of a pattern.
_LENGTH = 100
#: Numbers of texts may be others in the next run, such as ports; but not those in names, such as worker1.
_NUMBER = re.compile(r"(?<![A-Za-z_0-9])-?[0-9][\w.+-]*")
#: What a comparison says before its numbers; where it says so is the same in each run.
_OFF = "off by"


@dataclass(frozen=True)
class Statement:
    """The keys of an entry that say what is seen; all empty where ranks deviate in ways that no entry covers."""

    match: tuple[str, ...] = ()
    raises: str = ""
    at_most: float | None = None


NOTHING = Statement()


def statement(deviations: Sequence[DeviationPart]) -> Statement:
    """What covers all of these deviations, and little else."""
    raising = [one for one in deviations if one.raised]
    if raising and len(raising) < len(deviations):
        return NOTHING  # an entry is of an exception, or of values that differ
    raises = _common([one.raised for one in raising])
    if raising and not raises:
        return NOTHING
    return Statement(_patterns(deviations), raises, None if raises else _at_most(deviations))


def _common(kinds: Sequence[Sequence[str]]) -> str:
    """The narrowest class that all of the exceptions are of."""
    wide = ("Exception", "BaseException")  # which a ledger refuses
    return next((name for name in next(iter(kinds), ()) if name not in wide and all(name in of for of in kinds)), "")


def _at_most(deviations: Iterable[DeviationPart]) -> float | None:
    """Twice the largest error, rounded up to one digit: another processor rounds otherwise."""
    errors = [one.off for one in deviations]
    known = [2 * error for error in errors if error is not None]
    if len(known) < len(errors) or not known or not 0 < max(known) < 1e300:
        return None
    digits = -math.floor(math.log10(max(known)))
    return round(math.ceil(max(known) * 10.0**digits) * 10.0**-digits, max(0, digits))


def _patterns(deviations: Sequence[DeviationPart]) -> tuple[str, ...]:
    """The shortest first, and none that another says already: ranks repeat what another rank has found."""
    kept: list[str] = []
    for one in sorted(deviations, key=lambda one: len(one.text)):
        pattern = _pattern(one)
        if pattern and not any(holds(one.text, other) for other in kept):
            kept.append(pattern)
    return tuple(kept)


def _pattern(deviation: DeviationPart) -> str:
    """The start of its text, without what chance may change."""
    before, off, _ = deviation.text.partition(_OFF)
    if deviation.off is not None and off and len(before) <= _LENGTH:
        return before + off
    text = re.sub(r"\*(?:[^\w]*\*)+", "*", _NUMBER.sub("*", deviation.text[:_LENGTH]))
    if len(deviation.text) > _LENGTH:
        text = text.rpartition(" ")[0] or text
    return text.strip("* ")


def holds(text: str, pattern: str) -> bool:
    """Whether the pattern is in the text, as the kit decides it: a star stands for anything."""
    parts = [re.escape(" ".join(part.split())) for part in pattern.split("*")]
    return re.search(".*".join(parts), " ".join(text.split())) is not None
