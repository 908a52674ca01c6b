"""Read the history of a folder of run files: each law over the nights."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Literal

import msgspec
from everyrank.model.outcome import ENDINGS, NOT_TRIED, RED, Ending
from everyrank.reports.diff.diff import GREW
from everyrank.reports.diff.pace import LAW_CASES, LAW_RATIO, LAW_SECONDS
from everyrank.reports.errors import CannotRead, NoNights
from everyrank.reports.history.index import CaseKey, LawKey, forget, index
from everyrank.reports.runfile.conclusion import State as RunState
from everyrank.reports.runfile.source import Source

#: How many earlier nights are needed to judge whether a night is slower.
NIGHTS = 3
#: How many laws must have run in a night to measure how slow the whole night was.
LAWS = 6

State = Literal["green", "red", "unknown"]

#: A letter for each of `ENDINGS`, and one for a night in which a case was not tried.
LETTERS, UNTRIED = "abcdefghijklmnopqrstuvwxyz", "."

_SOURCE = msgspec.json.Decoder(Source)
_COUNTS = msgspec.json.Decoder(dict[Ending, int])
_REASONS = msgspec.json.Decoder(tuple[str, ...])


@dataclass(frozen=True)
class Night:
    """One run."""

    path: str
    started: float
    kit: str
    torch: str
    whole: bool
    came: str
    seconds: float | None
    counts: dict[Ending, int]
    source: Source = field(default_factory=Source)
    state: RunState = "as-declared"
    reasons: tuple[str, ...] = ()  # why it is not as declared, beside the counts
    tempo: float = 1.0  # the time of all laws together, relative to the median night

    @property
    def date(self) -> str:
        return time.strftime("%Y-%m-%d %H:%M", time.gmtime(self.started))


@dataclass(frozen=True)
class LawNight:
    """A law in one night."""

    counts: dict[Ending, int]
    seconds: float | None  # of the median case
    relative: float | None  # the largest error
    ulps: float | None
    even: float | None = None  # seconds of the median case, corrected for the tempo of the night

    @property
    def state(self) -> State:
        """Red if a case is red; unknown if no case was tried."""
        tried = self.counts.keys() - NOT_TRIED
        if tried & RED:
            return "red"
        return "green" if tried else "unknown"


@dataclass(frozen=True)
class LawHistory:
    """A law of a subject over the nights; None for a night without a line of its cases."""

    subject: str
    contract: str
    law: str
    points: tuple[LawNight | None, ...]
    flipped: int  # times that a case went from green to red or back
    steps: int  # times that a case could have flipped
    flaked: int  # flips from one night to the next that no new kit, torch or commit explains

    @property
    def states(self) -> list[State]:
        return [point.state if point else "unknown" for point in self.points]

    @property
    def alike(self) -> tuple[object, ...]:
        """What laws of several subjects have in common if one cause may have broken them: the law, and its nights."""
        return (self.contract, self.law, *self.states) if self.contract else (self.law,)

    @property
    def known(self) -> list[tuple[int, State]]:
        """The nights in which the law was tried, with its state."""
        return [(night, state) for night, state in enumerate(self.states) if state != "unknown"]

    @property
    def red(self) -> bool:
        """Whether it was red when it was last tried."""
        return self.known[-1:] != [] and self.known[-1][1] == "red"

    @property
    def first_bad(self) -> int | None:
        """The first night that was red."""
        return next((night for night, state in self.known if state == "red"), None)

    @property
    def since(self) -> int | None:
        """The night since which it is red; None if it is not red."""
        reds = list(itertools.takewhile(lambda known: known[1] == "red", reversed(self.known)))
        return reds[-1][0] if reds else None

    @property
    def flips(self) -> int:
        """How often the law as a whole went from green to red or back."""
        states = [state for _, state in self.known]
        return sum(before != now for before, now in itertools.pairwise(states))

    @property
    def flake_rate(self) -> float:
        """The share of steps between nights at which a case flipped without a new kit, torch or commit."""
        return self.flaked / self.steps if self.steps else 0.0

    @property
    def pace(self) -> float | None:
        """The time of its median case in its last night relative to the earlier median, corrected for the tempo."""
        return _against([point.even for point in self.points if point])

    @property
    def slower(self) -> bool:
        """Whether its last night is slower than all nights before."""
        tried = [point for point in self.points if point and point.even is not None]
        if self.pace is None or len(tried) <= NIGHTS or sum(tried[-1].counts.values()) < LAW_CASES:
            return False
        times = [point.even or 0.0 for point in tried]
        usual = median(times[:-1])
        return times[-1] > max(times[:-1]) and self.pace >= LAW_RATIO and times[-1] - usual >= LAW_SECONDS

    @property
    def less_exact(self) -> bool:
        """Whether its largest error grew in its last night."""
        return self.drift is not None and self.drift > GREW

    @property
    def drift(self) -> float | None:
        """The largest error in its last night relative to the median of the nights before; inf if that was 0."""
        return _against([point.relative for point in self.points if point])


@dataclass(frozen=True)
class History:
    """All laws over all nights."""

    nights: tuple[Night, ...]
    laws: tuple[LawHistory, ...]
    left_out: tuple[str, ...]  # one line for each file that was left out, with the reason
    #: The outcome of each case in the latest nights, one of `LETTERS` for each night; empty if not asked for.
    cases: Mapping[CaseKey, str] = field(default_factory=dict)


def of_folder(folder: Path, partial: bool = False, rebuild: bool = False, case_nights: int = 0) -> History:
    """Return the history of the run files below a folder, with each case in the latest ``case_nights`` nights.

    Raise a `ReportError` if no run file can be read.
    """
    try:
        next(folder.iterdir(), None)
    except OSError as error:
        raise CannotRead(folder, f"cannot be read: {error.strerror or error}") from None
    try:
        with index(folder, rebuild) as base:
            past = _history(base, partial, case_nights)
    except sqlite3.DatabaseError:  # the index is broken: rebuild it from the files
        with index(folder, rebuild=True) as base:
            past = _history(base, partial, case_nights)
    if not past.nights:
        forget(folder)
        reason = f": {past.left_out[0]}" if past.left_out else ""
        raise NoNights(f"{folder}: no run file that can be read{reason}")
    return past


def _history(base: sqlite3.Connection, partial: bool, case_nights: int = 0) -> History:
    left_out = []
    nights: dict[int, Night] = {}
    seen: dict[str, str] = {}
    query = (
        "SELECT night, path, problem, whole, came, same, started, kit, torch, seconds, counts, source, state, reasons"
        " FROM nights ORDER BY started, path"
    )
    for night, path, problem, whole, came, same, *facts in base.execute(query):
        if problem:
            left_out.append(problem)
        elif not whole and not partial:
            left_out.append(f"{path}: its run was killed, or is still running ({came}); --partial counts it too")
        elif same in seen:
            left_out.append(f"{path}: the same run as {seen[same]}")
        else:
            seen[same] = path
            nights[night] = _night(path, bool(whole), came, *facts)
    indices = {night: index for index, night in enumerate(nights)}
    with _chosen(base, nights):
        flips = _flips(base)
        letters = _letters(base, len(nights), max(0, len(nights) - case_nights)) if case_nights else {}
    points: dict[LawKey, list[LawNight | None]] = {}
    for night, subject, contract, law, counts, seconds, relative, ulps in base.execute("SELECT * FROM laws"):
        if night in indices:
            of_law = points.setdefault((subject, contract, law), [None] * len(nights))
            of_law[indices[night]] = LawNight(_COUNTS.decode(counts), seconds, relative, ulps)
    tempos = _tempos(len(nights), points.values())
    laws = tuple(LawHistory(*key, _evened(points[key], tempos), *flips.get(key, (0, 0, 0))) for key in sorted(points))
    timed = tuple(replace(night, tempo=tempo) for night, tempo in zip(nights.values(), tempos, strict=True))
    return History(timed, laws, tuple(left_out), letters)


def _night(
    path: str, whole: bool, came: str, started: float, kit: str, torch: str, seconds: float | None,
    counts: str, source: str, state: RunState, reasons: str,
) -> Night:  # fmt: skip
    decoded = _COUNTS.decode(counts), _SOURCE.decode(source), state, _REASONS.decode(reasons)
    return Night(path, started, kit, torch, whole, came, seconds, *decoded)


def _tempos(nights: int, laws: Iterable[Sequence[LawNight | None]]) -> list[float]:
    """Return how slow each night was: the median, over its laws, of their time relative to their usual time."""
    ratios: list[list[float]] = [[] for _ in range(nights)]
    for points in laws:
        times = [point.seconds for point in points if point and point.seconds]
        for night, point in enumerate(points):
            if point and point.seconds:
                ratios[night].append(point.seconds / median(times))
    # With few laws, one slower law would make the whole night look slow.
    return [median(of_night) if len(of_night) >= LAWS else 1.0 for of_night in ratios]


def _evened(points: Sequence[LawNight | None], tempos: Sequence[float]) -> tuple[LawNight | None, ...]:
    return tuple(
        replace(point, even=point.seconds / tempo) if point and point.seconds else point
        for point, tempo in zip(points, tempos, strict=True)
    )


@contextlib.contextmanager
def _chosen(base: sqlite3.Connection, nights: dict[int, Night]) -> Iterator[None]:
    """Make a temporary table of the nights that count, in their order."""
    base.execute(
        "CREATE TEMP TABLE IF NOT EXISTS chosen"
        " (night INTEGER PRIMARY KEY, position INTEGER, version TEXT, source TEXT)"
    )
    base.execute("DELETE FROM chosen")
    rows = [
        (key, index, f"{night.kit} {night.torch}", night.source.commit)
        for index, (key, night) in enumerate(nights.items())
    ]
    base.executemany("INSERT INTO chosen VALUES (?, ?, ?, ?)", rows)
    try:
        yield
    finally:
        base.execute("DROP TABLE chosen")


def _letters(base: sqlite3.Connection, nights: int, first: int) -> dict[CaseKey, str]:
    """Return the outcomes of each case: a letter for each night from ``first`` on."""
    letter = dict(zip(ENDINGS, LETTERS, strict=False))
    rows: dict[int, list[str]] = {}
    query = "SELECT name, position, ending FROM outcomes JOIN chosen USING (night) WHERE position >= ?"
    for name, position, ending in base.execute(query, (first,)):
        rows.setdefault(name, [UNTRIED] * (nights - first))[position - first] = letter[ending]
    names = base.execute("SELECT name, subject, contract, law, title FROM names")
    return {(*key,): "".join(rows[name]) for name, *key in names if name in rows}


def _flips(base: sqlite3.Connection) -> dict[LawKey, tuple[int, int, int]]:
    """Return for each law the flips of its cases, their steps between nights, and the flips that are flakes.

    A new kit or torch explains a flip. A new commit explains the first two of a case: a regression and its fix.
    """
    rows = base.execute("""
        WITH steps AS (
            SELECT name, position, red, version, source, lag(red) OVER each AS before,
                   lag(version) OVER each AS version_before, lag(source) OVER each AS source_before
            FROM outcomes JOIN chosen USING (night) WHERE ending NOT IN ('not-run', 'skipped', 'not-applicable')
            WINDOW each AS (PARTITION BY name ORDER BY position)
        ), counted AS (
            SELECT *, red != before AS flipped, sum(red != before) OVER (PARTITION BY name ORDER BY position) AS flips
            FROM steps WHERE before IS NOT NULL
        )
        SELECT subject, contract, law, sum(flipped), count(*),
               sum(flipped AND version = version_before AND (source = source_before OR flips > 2))
        FROM counted JOIN names USING (name) GROUP BY subject, contract, law
    """)
    return {(subject, contract, law): (flips, steps, flaked) for subject, contract, law, flips, steps, flaked in rows}


def _against(values: Sequence[float | None]) -> float | None:
    """Return the last value relative to the median of the values before."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return None
    before = median(known[:-1])
    if before == 0:
        return float("inf") if known[-1] > 0 else 1.0
    return known[-1] / before
