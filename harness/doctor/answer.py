"""What one look at the machine found, and how it is printed."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass

#: The states: it works; it works not, or not fully, and some tests are skipped or limited; worlds cannot run.
OK, NOTE, BAD = "ok", "note", "BAD"

_WIDTH = 100


@dataclass(frozen=True)
class Answer:
    """The answer to one question about this machine."""

    name: str
    state: str
    text: str
    advice: str = ""
    """What to do, if the state is not ok."""


def lines(answers: Iterable[Answer]) -> list[str]:
    """Return the answers as a table; what to do stands below the answer that asks for it."""
    answers = tuple(answers)
    indent = 6 + 2 + max(len(answer.name) for answer in answers) + 2
    lines = []
    for answer in answers:
        head = f"{answer.state:>6}  {answer.name}".ljust(indent)
        lines += textwrap.wrap(answer.text, _WIDTH, initial_indent=head, subsequent_indent=" " * indent)
        if answer.advice:
            below = " " * indent
            lines += textwrap.wrap(
                answer.advice, _WIDTH, initial_indent=f"{below}-> ", subsequent_indent=f"{below}   "
            )
    return lines
