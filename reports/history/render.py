"""Print a history as text or as JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
from everyrank.model.counts import count
from everyrank.model.outcome import RED, Ending
from everyrank.reports.history.history import History, LawHistory, Night, State
from everyrank.reports.text import duration, plain, some

#: The letter of each night.
MARKS: dict[State, str] = {"green": ".", "red": "F", "unknown": " "}

#: How many nights are drawn.
_DRAWN = 60
#: How many of the latest nights with reasons beside their cases are named, and the characters of each.
_WRONG, _REASON = 10, 400
#: How many subjects of one line are named.
_SUBJECTS = 4


def as_text(history: History, every: bool = False) -> str:
    """Return the laws that are red, that flip, that got slower or less exact; with ``every``, all laws."""
    nights = history.nights
    killed = sum(not night.whole for night in nights)
    span = f"from {nights[0].date} to {nights[-1].date} UTC"
    lines = [f"{count(len(nights), 'night')} {span}" + (f", {killed} of them not whole" if killed else "")]
    lines += [f"left out: {plain(reason)}" for reason in history.left_out]
    lines += _wrong_beside(nights)
    lines.append("")
    shown: set[int] = set()
    for title, belongs in _SECTIONS:
        laws = [law for law in history.laws if id(law) not in shown and belongs(law)]
        shown.update(map(id, laws))
        lines += _section(title, laws, history)
    rest = [law for law in history.laws if id(law) not in shown]
    lines += _section("the other laws", rest, history) if every else []
    if not shown:
        lines.append("no law is red, flips, or got slower or less exact" + _but(nights[-1]))
    elif rest and not every:
        lines.append(f"{count(len(rest), 'other law')}: nothing to report (--all shows them)")
    return "\n".join(lines).rstrip() + "\n"


def as_json(history: History) -> str:
    """Return JSON for programs: all laws over all nights."""
    return msgspec.json.format(msgspec.json.encode(as_data(history)), indent=2).decode() + "\n"


def as_data(history: History) -> dict[str, Any]:
    """Return plain data, which the page reads too. A law refers to a night by its index in the list."""
    return {
        "nights": [{**msgspec.to_builtins(night), "date": night.date} for night in history.nights],
        "left_out": list(history.left_out),
        "laws": [_law_data(law) for law in history.laws],
    }


_SECTIONS: Sequence[tuple[str, Callable[[LawHistory], bool]]] = (
    ("red", lambda law: law.red),
    ("flaky: cases flip, and no new kit, torch or commit explains it", lambda law: law.flaked > 1),
    ("was red", lambda law: law.first_bad is not None),
    ("slower than before", lambda law: law.slower),
    ("less exact than before", lambda law: law.less_exact),
)


def _wrong_beside(nights: Sequence[Night]) -> list[str]:
    """List the nights in which something went wrong beside the cases, or nothing ran: no law shows it."""
    lines = [
        f"{night.date} ({plain(night.path)}): {plain('; '.join(night.reasons), _REASON)}"
        for night in nights
        if night.reasons
    ]
    more = len(lines) - _WRONG
    return [f"... {count(more, 'night')} before these too", *lines[more:]] if more > 0 else lines


def _but(last: Night) -> str:
    """Return a note if the last night is not as declared although no law shows it."""
    return "" if last.state == "as-declared" else f"; the last night is not as declared ({last.date})"


def _section(title: str, laws: Iterable[LawHistory], history: History) -> Iterator[str]:
    laws = list(laws)
    if not laws:
        return
    yield title
    alike: dict[object, list[LawHistory]] = {}
    for law in laws:
        # Times and errors differ from subject to subject: only nights that were red are shown once for all.
        alike.setdefault(law.alike if law.first_bad is not None else id(law), []).append(law)
    for group in alike.values():
        marks = "".join(MARKS[state] for state in group[0].states[-_DRAWN:])
        yield f"  {plain(_names(group))}"
        yield f"    [{marks}] {'; '.join(_facts(group, history))}"
    yield ""


def _names(laws: Sequence[LawHistory]) -> str:
    """Return the name of a law, and the subjects that broke it alike."""
    if len(laws) == 1:
        return name(laws[0])
    subjects = ", ".join(some([law.subject for law in laws], _SUBJECTS))
    return f"{count(len(laws), 'subject')} {laws[0].contract}/{laws[0].law} ({subjects})"


def name(law: LawHistory) -> str:
    """Return the subject and the law. A test without a subject is named by its function."""
    return f"{law.subject} {law.contract}/{law.law}" if law.contract else law.law


def _facts(laws: Sequence[LawHistory], history: History) -> Iterator[str]:
    law = laws[0]
    if law.since is not None:
        night = history.nights[law.since]
        yield f"red since {night.date} ({plain(', '.join([night.path, *_sources(law, history, law.since)]))})"
        counts = sum((Counter(_last_red(law)) for law in laws), Counter())
        yield "last " + ", ".join(f"{number} {ending}" for ending, number in counts.items() if ending in RED)
    if law.first_bad is not None and law.first_bad != law.since:
        bad = plain(", ".join(_sources(law, history, law.first_bad)))
        yield f"first bad night {history.nights[law.first_bad].date}" + (f" ({bad})" if bad else "")
    if law.flips:
        yield count(law.flips, "flip")
    if any(law.flaked for law in laws):
        yield f"flake rate {sum(law.flaked for law in laws) / sum(law.steps for law in laws):.2%}"
    if len(laws) == 1:
        yield from _measures(law)


def _last_red(law: LawHistory) -> dict[Ending, int]:
    return next((point.counts for point in reversed(law.points) if point and point.state == "red"), {})


def _measures(law: LawHistory) -> Iterator[str]:
    """Yield its time and its error in its last night."""
    last = next((point for point in reversed(law.points) if point is not None), None)
    if last is not None and last.seconds is not None:
        yield f"{duration(last.seconds)} a case" + (f" ({law.pace:.1f}x)" if law.pace is not None else "")
    if last is not None and last.relative is not None:
        grew = "" if law.drift in (None, 1.0) else _times(law.drift)
        yield ("exact" if last.relative == 0 else f"error {last.relative:.2g}") + grew


def _sources(law: LawHistory, history: History, night: int) -> Iterator[str]:
    """Yield the commit of a night, and that of the last night before it in which the law was tried."""
    source = history.nights[night].source
    before = [known for known, _ in law.known if known < night]
    if str(source):
        yield str(source)
    if before and (good := history.nights[before[-1]].source).commit not in ("", source.commit):
        yield f"{good.commit[:10]} the night before"


def _times(drift: float | None) -> str:
    return " (was exact)" if drift is None or math.isinf(drift) else f" ({drift:.1f}x)"


def _law_data(law: LawHistory) -> dict[str, Any]:
    points = [
        {**msgspec.to_builtins(point), "state": point.state} if point is not None else None for point in law.points
    ]
    return {
        "subject": law.subject,
        "contract": law.contract,
        "law": law.law,
        "red": law.red,
        "first_bad": law.first_bad,
        "since": law.since,
        "flips": law.flips,
        "flipped_cases": law.flipped,
        "flake_rate": law.flake_rate,
        "pace": law.pace,
        "slower": law.slower,
        "less_exact": law.less_exact,
        "drift": law.drift,
        "nights": points,
    }
