"""Make a badge: how many of a subject's cases hold, out of all that were to run, and the other outcomes.

Of a run without subjects, it is how many of the tests pass.
"""

from __future__ import annotations

import html
from collections import Counter
from dataclasses import dataclass

import msgspec
from everyrank.model.outcome import ENDINGS, HOLDS, RED, Ending
from everyrank.reports.errors import NoSubject
from everyrank.reports.runfile.model import SinglePart
from everyrank.reports.runfile.read import Run
from everyrank.reports.text import plain

#: Outcomes that say nothing about the subject.
NOT_ASKED: frozenset[Ending] = frozenset(("not-applicable", "skipped"))

#: The colours of shields.io: name -> colour.
_COLOURS = {
    "brightgreen": "#4c1", "green": "#97ca00", "yellow": "#dfb317", "orange": "#fe7d37", "red": "#e05d44",
    "lightgrey": "#9f9f9f",
}  # fmt: skip

#: The width of every letter in the picture, whose font is monospaced. ``textLength`` makes any other font fit.
_ADVANCE = 6.6


@dataclass(frozen=True)
class Badge:
    """The texts and the colour of a badge."""

    label: str
    message: str
    colour: str


def badge(run: Run, subject: str = "", label: str = "everyrank") -> Badge:
    """Count the cases of a subject; without a name, those of the only one, or the tests of a run without subjects.

    Raise `NoSubject` if the run does not have the subject, and no reason beside the cases, or has several.
    """
    names = sorted({*run.header.subjects, *(case.subject for case in run.cases if case.subject)})
    if not subject and len(names) > 1:
        raise NoSubject(f"{run.path}: several subjects: name one with --subject: {', '.join(names)}")
    if not subject and not names:
        return _of_tests(run, label)
    subject = subject or names[0]
    cases = [case for case in run.cases if case.subject == subject]
    if not cases and subject not in names and run.cases and not run.conclusion.beside:
        raise NoSubject(f"{run.path}: no case of a subject {subject!r}; its subjects: {', '.join(names) or 'none'}")
    counts = Counter(case.outcome for case in cases)
    # A case that was not run and whose subject is unknown may belong to this subject.
    nameless = sum(case.outcome == "not-run" and not case.subject and bool(case.law) for case in run.cases)
    counts["not-run"] += nameless
    return _of_counts(run, label, counts, "hold", "nothing asked" if cases else "nothing ran")


def _of_tests(run: Run, label: str) -> Badge:
    """Count all tests. Failed single-process tests are named as what went wrong beside the cases."""
    single = run.footer.single if run.footer is not None and run.footer.single is not None else SinglePart()
    counts = Counter(case.outcome for case in run.cases)
    if not counts:  # green needs a test on several ranks
        return _of_counts(run, label, counts, "pass", "nothing ran")
    counts.update({"pass": single.passed, "skipped": single.skipped})
    return _of_counts(run, label, counts, "pass", "nothing asked", single.failed)


def _of_counts(run: Run, label: str, counts: Counter[Ending], verb: str, nothing: str, more: int = 0) -> Badge:
    """Return the badge of these counts. ``more`` tests failed without a case."""
    beside = run.conclusion.beside
    asked = sum(number for ending, number in counts.items() if ending not in NOT_ASKED) + more
    holds = sum(counts[ending] for ending in HOLDS)
    parts = [f"{holds:,} of {asked:,} {verb}" if asked else nothing]
    named = [ending for ending in ENDINGS if counts[ending] and ending not in ("pass", "not-applicable")]
    parts += [f"{counts[ending]:,} {ending}" for ending in named]
    parts += [reason.brief for reason in run.conclusion.reasons if reason.kind == "not-whole" or reason in beside]
    red = bool(beside) or any(counts[ending] for ending in RED)
    return Badge(label, ", ".join(parts), _colour(counts, red, run.complete and asked > 0))


def _colour(counts: Counter[Ending], red: bool, tried: bool) -> str:
    """Return red if a case is not as declared, grey if nothing was tried, the brightest green without deviations."""
    if red:
        return "red"
    if not tried:
        return "lightgrey"
    if counts["known"]:
        return "yellow"
    return "green" if counts["unsupported"] or counts["approximate"] else "brightgreen"


def as_json(badge: Badge) -> str:
    """Return the JSON of a shields.io endpoint badge."""
    data = {"schemaVersion": 1, "label": badge.label, "message": badge.message, "color": badge.colour}
    return msgspec.json.encode(data).decode() + "\n"


def as_svg(badge: Badge) -> str:
    """Return an SVG picture, which needs no server."""
    label, message = plain(badge.label), plain(badge.message)
    left, right = (12 + round(_ADVANCE * len(text)) for text in (label, message))
    width, title = left + right, html.escape(f"{label}: {message}")
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" viewBox="0 0 {width} 20" role="img" \
aria-label="{title}">
  <title>{title}</title>
  <clipPath id="round"><rect width="{width}" height="20" rx="3"/></clipPath>
  <g clip-path="url(#round)">
    <rect width="{left}" height="20" fill="#444"/>
    <rect x="{left}" width="{right}" height="20" fill="{_COLOURS[badge.colour]}"/>
  </g>
  <g font-family="DejaVu Sans Mono,Consolas,Menlo,monospace" font-size="11" text-anchor="middle">
    <text x="{left / 2:g}" y="14" fill="#fff" textLength="{left - 12}">{html.escape(label)}</text>
    <text x="{left + right / 2:g}" y="14" fill="#111" textLength="{right - 12}">{html.escape(message)}</text>
  </g>
</svg>
"""
