"""Cut the middle out of a long text, and say how much is missing.

A text may be cut more than once: in its rank, for the run file, and for a page. What an earlier cut left out is
counted again where its note falls into the part that goes, and a note is never cut in half.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

#: The notes of all cuts: the harness's, and the two below.
_NOTES = re.compile(
    r"\n\.\.\. \[everyrank left out (?P<rank>[\d,]+) (?P<unit>characters|bytes) here\] \.\.\.\n"
    r"|\n\.\.\. \[(?P<line>[\d,]+ characters(?: and [\d,]+ bytes)?) are left out here\] \.\.\.\n"
    r"| \[… (?P<page>[\d,]+ characters(?: and [\d,]+ bytes)?) left out …\] "
)
_AMOUNT = re.compile(r"([\d,]+) (characters|bytes)")

#: How a run file notes a cut, on a line of its own; and how a page does, within a line.
OWN_LINE = "\n... [{} are left out here] ...\n"
WITHIN = " [… {} left out …] "


def cut_middle(text: str, kept: int, note: str = OWN_LINE) -> str:
    """The text, or ``kept`` characters of its start and as many of its end."""
    if len(text) <= 2 * kept:
        return text
    start, end = kept, len(text) - kept
    gone: Counter[str] = Counter()
    for first, last, amounts in _notes(text):
        if last <= start or first >= end:
            continue
        start, end = min(start, first), max(end, last)
        gone.update(amounts)
        gone["characters"] -= last - first
    gone["characters"] += end - start
    amount = f"{gone['characters']:,} characters" + (f" and {gone['bytes']:,} bytes" if gone["bytes"] else "")
    return text[:start] + note.format(amount) + text[end:]


def _notes(text: str) -> Iterator[tuple[int, int, Counter[str]]]:
    """Where each note begins and ends, and what it counts."""
    for match in _NOTES.finditer(text):
        said = match["line"] or match["page"] or f"{match['rank']} {match['unit']}"
        amounts = {unit: int(number.replace(",", "")) for number, unit in _AMOUNT.findall(said)}
        yield match.start(), match.end(), Counter(amounts)
