"""Build one HTML file from a template, styles, scripts and data. It needs nothing outside it.

There is no build step and no library. Scripts and styles are as prettier formats them, 116 columns wide.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import msgspec
from everyrank.reports.errors import CaseTwice, NotOneRun, TwoSubjects
from everyrank.reports.history.history import History
from everyrank.reports.page.against import Against
from everyrank.reports.page.data import details, page_data
from everyrank.reports.page.nights import nights_data
from everyrank.reports.runfile.read import Run

#: The scripts, in the order in which they are joined: code that runs at once follows the code that it uses.
SCRIPTS = (
    "dom", "store", "columns", "address", "filters", "matrix", "cases", "plot", "lanes", "ranks", "issue",
    "parts", "parity", "mutants", "sweep", "drawer", "timeline", "times", "findings", "history", "keys", "main",
)  # fmt: skip
#: The generator's name, which identifies a page of everyrank.
GENERATOR = "everyrank page"
STYLES = (
    "tokens", "base", "head", "matrix", "list", "time", "findings", "drawer", "lanes", "plot", "parity",
    "history", "media",
)  # fmt: skip

_ONCE = "a page shows each once (--history adds earlier nights)"
_SLOT = re.compile(r"\{\{(\w+)\}\}")


def page(runs: Sequence[Run], title: str = "", history: History | None = None, against: Run | None = None) -> str:
    """Return the page of these runs, with the nights before, or of one run beside an earlier one."""
    earlier = Against(against, runs[0]) if against is not None else None
    chunks, shortened = details(runs, history=history, against=earlier)
    nights = None if history is None else nights_data(history)
    data = {**page_data(runs, earlier), "shortened": shortened, "history": nights}
    style, script = _joined("css", STYLES), _joined("js", SCRIPTS)
    script = f'"use strict";\n(() => {{\n{script}\n}})();\n'
    slots = {
        "generator": html.escape(f"{GENERATOR} {runs[0].header.kit}"),
        "title": html.escape(title or _title(runs)),
        "policy": f"default-src 'none'; style-src {hash_of(style)}; script-src {hash_of(script)}; base-uri 'none'",
        "shapes": _text("shapes.svg"),
        "style": style,
        "script": script,
        "data": embedded(data),
        "details": embedded(chunks),
    }
    # One pass: the contents of a slot are never searched for other slots.
    return _SLOT.sub(lambda slot: slots[slot[1]], _text("page.html"))


def check_apart(runs: Sequence[Run]) -> None:
    """Refuse files that share a subject or a case: on a page, each case has one outcome."""
    subjects: dict[str, Run] = {}
    tests: dict[str, Run] = {}
    if len(runs) > 1 and any(run.header.shard for run in runs):
        raise NotOneRun("these are shards: `everyrank merge` makes one run file of them")
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
    """Return JSON without any ``<``, ``>`` or ``&``: it cannot end the markup around it or be read as markup."""
    text = msgspec.json.encode(data).decode()
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def _joined(kind: str, names: Sequence[str]) -> str:
    return "\n".join(_text(kind, f"{name}.{kind}") for name in names)


def _text(*path: str) -> str:
    return files(__package__).joinpath(*path).read_text(encoding="utf-8")


def hash_of(text: str) -> str:
    """Return the hash that lets the browser run a script or apply a style; it refuses all others."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _title(runs: Sequence[Run]) -> str:
    return f"everyrank: {', '.join(run.path.name for run in runs)}"
