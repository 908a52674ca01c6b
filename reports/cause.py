"""Which red cases have one cause: `diff` and the page show one cause once, on however many subjects."""

from __future__ import annotations

import re
from collections.abc import Sequence

from everyrank.model.outcome import RED
from everyrank.reports.runfile.model import CaseLine

#: Parts of a message in which failures of one cause differ, and what stands for them. Lines of code count.
_VARYING = (
    (re.compile(r"0x[0-9a-f]+", re.IGNORECASE), "#"),
    (re.compile(r"\branks? \d[\d,-]*"), "ranks"),
    (re.compile(r"(\.py:\d+)|[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?", re.IGNORECASE), lambda match: match[1] or "#"),
    (re.compile(r"'[^']*'|\"[^\"]*\""), "'…'"),
)


def signature(case: CaseLine) -> str:
    """Return the case's message without figures, addresses, ranks, quoted names and the subject's own name.

    A case without a message has its law instead.
    """
    if not case.message:
        return f"{case.contract}/{case.law}" if case.law else case.id.partition("[")[0]
    text = case.message
    for name in {case.subject, case.subject.rpartition(".")[2]} - {""}:
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", "…", text)
    for pattern, instead in _VARYING:
        text = pattern.sub(instead, text)
    return text


def causes(cases: Sequence[CaseLine]) -> list[int]:
    """Return the number of each case's cause; -1 for a case that is not red.

    Cases of one subject or of one law have one cause if they ended alike, with one signature. So a law that is broken
    alike on many subjects is one cause, and so are all laws of a subject that are broken alike.
    """
    keys = [_keys(case) if case.outcome in RED else None for case in cases]
    alike = _Alike()
    for pair in keys:
        if pair is not None:
            alike.join(*pair)
    numbers: dict[_Key, int] = {}
    return [-1 if pair is None else numbers.setdefault(alike.first(pair[0]), len(numbers)) for pair in keys]


_Key = tuple[str, ...]


def _keys(case: CaseLine) -> tuple[_Key, _Key]:
    """Return a key of the subject and a key of the law, each with what the case must have in common with others."""
    ended = (case.outcome, signature(case))
    return (*ended, "subject", case.subject), (*ended, "law", case.contract, case.law)


class _Alike:
    """Keys that belong together, as trees: each key has one above it, or is the first of its tree."""

    def __init__(self) -> None:
        self._above: dict[_Key, _Key] = {}

    def first(self, key: _Key) -> _Key:
        while (above := self._above.get(key, key)) != key:
            key = above
        return key

    def join(self, left: _Key, right: _Key) -> None:
        self._above[self.first(right)] = self.first(left)
