"""One HTML file out of a template, style, scripts and data, which nothing outside it is needed for."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import msgspec
from everyrank.reports.errors import CaseTwice, TwoSubjects
from everyrank.reports.history import History
from everyrank.reports.page.data import details, page_data
from everyrank.reports.page.nights import nights_data
from everyrank.reports.reading import Run

#: In this order they are one script: what is used at once comes after what it uses.
SCRIPTS = (
    "dom", "store", "address", "filters", "matrix", "cases", "plot", "lanes", "ranks", "issue", "drawer", "timeline",
    "times", "findings", "history", "keys", "main",
)  # fmt: skip
#: By this a page is known as one of ours.
GENERATOR = "everyrank page"
STYLES = (
    "tokens",
    "base",
    "head",
    "matrix",
    "list",
    "time",
    "findings",
    "drawer",
    "lanes",
    "plot",
    "history",
    "media",
)

_ONCE = "a page tells of it once (nights before come by --history)"
_SLOT = re.compile(r"\{\{(\w+)\}\}")


def page(runs: Sequence[Run], title: str = "", history: History | None = None) -> str:
    """The page of these runs, and of the nights before."""
    chunks, shortened = details(runs, history=history)
    nights = None if history is None else nights_data(history)
    data = {**page_data(runs), "shortened": shortened, "history": nights}
    style, script = _joined("css", STYLES), _joined("js", SCRIPTS)
    script = f'"use strict";\n(() => {{\n{script}\n}})();\n'
    slots = {
        "generator": html.escape(f"{GENERATOR} {runs[0].header.kit}"),
        "title": html.escape(title or _title(runs)),
        "policy": f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; base-uri 'none'",
        "shapes": _text("shapes.svg"),
        "style": style,
        "script": script,
        "data": embedded(data),
        "details": embedded(chunks),
    }
    # In one pass: what is put into one slot is never searched for another.
    return _SLOT.sub(lambda slot: slots[slot[1]], _text("page.html"))


def check_apart(runs: Sequence[Run]) -> None:
    """Refuse files that tell of the same: what is on one page has one outcome."""
    subjects: dict[str, Run] = {}
    tests: dict[str, Run] = {}
    for run in runs:
        for name in sorted({case.subject for case in run.cases} - {""}):
            first = subjects.setdefault(name, run)
            if first is not run:
                raise TwoSubjects(run.path, f"the subject {name!r} is also in {first.path}: {_ONCE}")
        for case in run.cases:
            first = tests.setdefault(case.id, run)
            if first is not run:
                raise CaseTwice(run.path, f"the case {case.id} is also in {first.path}: {_ONCE}")


def embedded(data: Any) -> str:
    """JSON that cannot end, or be read as, the markup around it: without any ``<``, ``>`` or ``&``."""
    text = msgspec.json.encode(data).decode()
    for one in "<>&\u2028\u2029":
        text = text.replace(one, f"\\u{ord(one):04x}")
    return text


def _joined(kind: str, names: Sequence[str]) -> str:
    return "\n".join(_text(kind, f"{name}.{kind}") for name in names)


def _text(*place: str) -> str:
    return files(__package__).joinpath(*place).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """The browser runs, and styles with, what has this hash, and nothing else."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _title(runs: Sequence[Run]) -> str:
    return f"everyrank: {', '.join(run.path.name for run in runs)}"
