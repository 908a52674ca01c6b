"""Make the message of a failure: its first line, and the later lines that show the size and the index of the error.

``torch.testing.assert_close`` and ``numpy.testing`` begin with "Tensor-likes are not close!" and print the figures
some lines later. A list of first lines would show the same text for all such failures.
"""

from __future__ import annotations

import re

#: The lines that are added to the first line, in this order.
_FIGURES = (
    re.compile(r"The failure occurred for item .+"),
    re.compile(r"Expected .+ but got .+"),
    re.compile(r"(Greatest |Max )?absolute difference\b.+", re.IGNORECASE),
    re.compile(r"(Greatest |Max )?relative difference\b.+", re.IGNORECASE),
    re.compile(r"Mismatched elements: .+"),
)
#: Later lines are read only if the first line matches this: any other text is its author's own.
_COMPARED = re.compile(r"are not (close|equal)!|Not equal to tolerance|Arrays are not ")


def failure_message(text: str) -> str:
    """Return the message on one line, without a limit of its length."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    opening = _opening(lines)
    if not _COMPARED.search(opening):
        return opening
    figures = [line.rstrip(".") for pattern in _FIGURES for line in lines if pattern.fullmatch(line)]
    return f"{opening} {'; '.join(dict.fromkeys(figures))}".rstrip()


def _opening(lines: list[str]) -> str:
    """Return the first line; if it ends with a colon, also the lines that it announces."""
    opening = lines[0] if lines else ""
    for line in lines[1:]:
        if not opening.endswith(":"):
            break
        opening = f"{opening} {line}"
    return opening
