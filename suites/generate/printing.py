"""What tests to paste have in common, whatever their draw, and the counts of a search as text."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from everyrank.suites.engine.subject import Subject
    from everyrank.suites.generate.plan import SearchPlan
    from everyrank.suites.generate.search import Found


def mark_of(mark: pytest.Mark) -> str:
    """Return a mark as code."""
    given = [*map(repr, mark.args), *(f"{name}={value!r}" for name, value in mark.kwargs.items())]
    return f"{mark.name}({', '.join(given)})"


def home_of(subject: Subject) -> tuple[str, str]:
    """Return the line that imports a subject, and its name there."""
    module, name = _home(subject)
    line = f"from {module} import {name}"
    return line if module else f"from ... import {name}  # where {subject.name} is declared", name


def _home(subject: Subject) -> tuple[str, str]:
    """Return a module and a name by which a subject can be imported, preferably the module that declares it."""
    homes = [
        (name, key)
        for name, module in list(sys.modules.items())
        for key, value in list(vars(module).items() if hasattr(module, "__dict__") else ())
        if value is subject and key.isidentifier() and not name.startswith("__")
    ]
    return min(homes, key=lambda home: ("test_" in home[0], home), default=("", "SUBJECT"))


def counted(result: Found, plan: SearchPlan) -> str:
    """Describe after how many draws the search found its draw."""
    if plan.draw:
        return "found by carrying out one draw"
    return f"found by draw {result.draws} of {plan.draws} (seed {plan.seed})"
