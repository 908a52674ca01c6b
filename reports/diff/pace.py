"""Find the laws and cases that got slower. The two runs themselves show how large the noise is.

Two nights are never equally fast. So each time is compared with the time expected if the whole run had slowed down
evenly, and that even part is reported once, for the whole run. A law is slower if the median of its cases is slower
and nearly all of its cases are. A case is slower if its change stands out from the changes of all cases.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from everyrank.model.outcome import HOLDS, Ending
from everyrank.reports.runfile.model import CaseLine

#: A law is slower if the ratio of its medians is at least LAW_RATIO, its median case lost at least LAW_SECONDS,
LAW_RATIO, LAW_SECONDS = 1.5, 0.02
#: it has at least LAW_CASES cases, and at least the share LAW_SHARE of them lost time.
LAW_CASES, LAW_SHARE = 5, 0.75
#: The least ratio, the least lost seconds, and the least number of standard deviations of a slower case.
CASE_RATIO, CASE_SECONDS, CASE_DEVIATIONS = 3.0, 0.5, 5.0
#: With fewer cases than this, the pace of the whole run is unknown.
RUN_CASES = 20
RUN_RATIO = 1.25

#: Outcomes of cases whose times are compared.
_RAN: frozenset[Ending] = HOLDS | {"known", "unsupported", "fail", "stale"}

Pair = tuple[CaseLine, CaseLine]


@dataclass(frozen=True)
class SlowerLaw:
    """A law of a subject whose cases got slower."""

    subject: str
    contract: str
    law: str
    cases: int
    old: float  # seconds of the median case
    new: float
    ratio: float  # beyond that of the whole run


@dataclass(frozen=True)
class SlowerCase:
    """A case that got slower although its law did not."""

    old: CaseLine
    new: CaseLine
    ratio: float  # beyond that of the whole run


@dataclass(frozen=True)
class Pace:
    """The times of the cases that ran in both runs."""

    old: float  # seconds of all cases that ran in both
    new: float
    ratio: float  # of the median case
    laws: tuple[SlowerLaw, ...]
    cases: tuple[SlowerCase, ...]

    @property
    def slower(self) -> bool:
        """Whether the whole run is slower."""
        return self.ratio >= RUN_RATIO


def pace(both: Iterable[Pair]) -> Pace:
    """Compare the times of cases that ran in both runs and ended alike."""
    timed = [(old, new) for old, new in both if _timed(old) and _timed(new) and old.outcome == new.outcome]
    before, now = sum(old.seconds for old, _ in timed), sum(new.seconds for _, new in timed)
    logs = [math.log(new.seconds / old.seconds) for old, new in timed]
    even = median(logs) if len(logs) >= RUN_CASES else 0.0
    laws = sorted(_laws(timed, math.exp(even)), key=lambda law: -law.ratio)
    slower_laws = {(law.subject, law.contract, law.law) for law in laws}
    spread = 1.4826 * median([abs(log - even) for log in logs]) if logs else 0.0
    cases = [
        SlowerCase(old, new, math.exp(log - even))
        for (old, new), log in zip(timed, logs, strict=True)
        if _stands_out(old, new, log, even, spread) and (new.subject, new.contract, new.law) not in slower_laws
    ]
    return Pace(before, now, math.exp(even), tuple(laws), tuple(sorted(cases, key=lambda case: -case.ratio)))


def _timed(case: CaseLine) -> bool:
    return case.outcome in _RAN and case.seconds > 0


def _laws(timed: Sequence[Pair], even: float) -> Iterable[SlowerLaw]:
    groups: dict[tuple[str, str, str], list[Pair]] = {}
    for old, new in timed:
        if new.law:
            groups.setdefault((new.subject, new.contract, new.law), []).append((old, new))
    for (subject, contract, law), pairs in groups.items():
        before, now = median([old.seconds for old, _ in pairs]), median([new.seconds for _, new in pairs])
        lost = sum(new.seconds > old.seconds * even for old, new in pairs)
        ratio = now / (before * even)
        if (
            len(pairs) >= LAW_CASES
            and ratio >= LAW_RATIO
            and now - before * even >= LAW_SECONDS
            and lost >= LAW_SHARE * len(pairs)
        ):
            yield SlowerLaw(subject, contract, law, len(pairs), before, now, ratio)


def _stands_out(old: CaseLine, new: CaseLine, log: float, even: float, spread: float) -> bool:
    return (
        new.seconds - old.seconds * math.exp(even) >= CASE_SECONDS
        and log - even >= math.log(CASE_RATIO)
        and log - even >= CASE_DEVIATIONS * spread
    )
