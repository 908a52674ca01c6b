"""Make the statement of a ledger's entry from the deviations of a run: the text, the exception, the error bound."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from everyrank.model.ledger import holds
from everyrank.reports.runfile.model import DeviationPart

#: The limit of a pattern, in characters.
_LENGTH = 100
#: Numbers in texts, such as ports, may differ in the next run. Numbers in names, such as worker1, do not.
_NUMBER = re.compile(r"(?<![A-Za-z_0-9])-?[0-9][\w.+-]*")
#: The members of a set may stand in another order in the next run. What has colons is a dict, which keeps its order.
_SET = re.compile(r"\{[^{}:]*,[^{}:]*\}")
#: The words of a comparison before its numbers. The text before them is the same in each run.
_OFF = "off by"


@dataclass(frozen=True)
class Statement:
    """The keys of an entry that describe the deviation. All are empty if no single entry can cover the ranks."""

    match: tuple[str, ...] = ()
    raises: str = ""
    at_most: float | None = None


NOTHING = Statement()


def statement(deviations: Sequence[DeviationPart]) -> Statement:
    """Return a statement that covers all of these deviations, and little else."""
    raising = [deviation for deviation in deviations if deviation.raised]
    if raising and len(raising) < len(deviations):
        return NOTHING  # an entry describes either an exception or values that differ
    raises = _common([deviation.raised for deviation in raising])
    if raising and not raises:
        return NOTHING
    return Statement(_patterns(deviations), raises, None if raises else _at_most(deviations))


def _common(kinds: Sequence[Sequence[str]]) -> str:
    """Return the narrowest class that all exceptions have in common."""
    wide = ("Exception", "BaseException")  # which a ledger refuses
    first = next(iter(kinds), ())
    return next((name for name in first if name not in wide and all(name in kind for kind in kinds)), "")


def _at_most(deviations: Iterable[DeviationPart]) -> float | None:
    """Return twice the largest error, rounded up to one digit: another processor rounds differently."""
    errors = [deviation.off for deviation in deviations]
    known = [2 * error for error in errors if error is not None]
    if len(known) < len(errors) or not known or not 0 < max(known) < 1e300:
        return None
    digits = -math.floor(math.log10(max(known)))
    return round(math.ceil(max(known) * 10.0**digits) * 10.0**-digits, max(0, digits))


def _patterns(deviations: Sequence[DeviationPart]) -> tuple[str, ...]:
    """Return the patterns, the shortest first, without those that another covers: ranks repeat each other's texts."""
    kept: list[str] = []
    for deviation in sorted(deviations, key=lambda deviation: len(deviation.text)):
        pattern = _pattern(deviation)
        if pattern and not any(holds(deviation.text, other) for other in kept):
            kept.append(pattern)
    return tuple(kept)


def _pattern(deviation: DeviationPart) -> str:
    """Return the start of its text, without the parts that may change from run to run."""
    before, off, _ = deviation.text.partition(_OFF)
    if deviation.off is not None and off and len(before) <= _LENGTH:
        return before + off
    whole = _SET.sub("*", deviation.text)
    text = re.sub(r"\*(?:[^\w]*\*)+", "*", _NUMBER.sub("*", whole[:_LENGTH]))
    if len(whole) > _LENGTH:
        text = text.rpartition(" ")[0] or text
    return text.strip("* ")
