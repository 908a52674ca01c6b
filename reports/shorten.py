"""Cut the middle out of a long text, and note how much is missing.

A text may be cut more than once: in its rank, for the run file, and for a page. If a cut removes the note of an
earlier cut, it adds the earlier amount to its own. A note is never cut in half.
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

#: The note of a cut in a run file, on its own line, and on a page, within a line.
OWN_LINE = "\n... [{} are left out here] ...\n"
WITHIN = " [… {} left out …] "


def cut_middle(text: str, kept: int, note: str = OWN_LINE) -> str:
    """Return the text, or ``kept`` characters of its start and as many of its end."""
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
    """Yield the start and the end of each note, and its amounts."""
    for match in _NOTES.finditer(text):
        text_of_amounts = match["line"] or match["page"] or f"{match['rank']} {match['unit']}"
        amounts = {unit: int(number.replace(",", "")) for number, unit in _AMOUNT.findall(text_of_amounts)}
        yield match.start(), match.end(), Counter(amounts)
