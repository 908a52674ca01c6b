"""The message of a failure: its first line, and the lines further down that say how far off it is, and where.

``torch.testing.assert_close`` and ``numpy.testing`` begin with "Tensor-likes are not close!" and tell the figures
lines later; a list of failures that keeps only first lines has the same line for all of them.
"""

from __future__ import annotations

import re

#: Lines worth a place in a list, in the order in which they are put there.
_FIGURES = (
    re.compile(r"The failure occurred for item .+"),
    re.compile(r"Expected .+ but got .+"),
    re.compile(r"(Greatest |Max )?absolute difference\b.+", re.IGNORECASE),
    re.compile(r"(Greatest |Max )?relative difference\b.+", re.IGNORECASE),
    re.compile(r"Mismatched elements: .+"),
)
#: Only where these open a failure are its later lines looked at: any other text is its author's.
_COMPARED = re.compile(r"are not (close|equal)!|Not equal to tolerance|Arrays are not ")


def failure_message(text: str) -> str:
    """On one line, as long as it comes."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    opening = _opening(lines)
    if not _COMPARED.search(opening):
        return opening
    figures = [line.rstrip(".") for wanted in _FIGURES for line in lines if wanted.fullmatch(line)]
    return f"{opening} {'; '.join(dict.fromkeys(figures))}".rstrip()


def _opening(lines: list[str]) -> str:
    """The first line; where it ends with a colon, what it announces as well."""
    opening = lines[0] if lines else ""
    for line in lines[1:]:
        if not opening.endswith(":"):
            break
        opening = f"{opening} {line}"
    return opening
