"""What the tests of all contracts' generated sequences share."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from everyrank import World
from everyrank.model.ledger import matches
from everyrank.suites.engine.case import cases
from everyrank.suites.engine.subject import Subject
from everyrank.suites.generate import options
from everyrank.suites.generate.data import code, decode, encode
from everyrank.suites.generate.grammar import Drawn, Grammar
from everyrank.suites.generate.plan import SearchPlan
from everyrank.suites.generate.search import Found, Search

hypothesis = pytest.mark.skipif(not options.installed(), reason="needs Hypothesis")


def drawn(
    grammar: Grammar, subject: Subject, world: World, plan: SearchPlan, features: frozenset[str] | None = None
) -> list[Any]:
    """Return what is drawn. Nothing of it is carried out."""
    seen: list[Drawn] = []

    def note(subject: Subject, draw: Drawn) -> str:
        seen.append(draw)
        return ""

    drawn_features = frozenset(grammar.features) if features is None else features
    Search(replace(grammar, play=note), subject, drawn_features, world).run(plan)
    return seen


def check_journey(grammar: Grammar, draws: list[Any]) -> None:
    """Check that draws stay the same as JSON and as the code of a test."""
    assert draws
    names = vars(importlib.import_module(grammar.module))
    for draw in draws:
        assert decode(encode(draw), grammar.by_name) == draw
        assert eval(code(draw), names) == draw


def printed_test(grammar: Grammar, subject: Subject, draw: Any) -> Callable[..., None]:
    """Return the function of the test that is printed for this draw."""
    names: dict[str, Any] = {}
    exec(grammar.printed(subject, draw), names)
    found: Callable[..., None] = names["test_found"]
    return found


def search(
    grammar: Grammar, subject: Subject, world: World, draws: int, features: frozenset[str] | None = None
) -> Found:
    """Search on all ranks."""
    drawn_features = frozenset(grammar.features) if features is None else features
    return Search(grammar, subject, drawn_features, world).run(SearchPlan(draws))


def left_out(grammar: Grammar, subject: Subject) -> frozenset[str]:
    """Return the features that are not drawn for this subject, whose ledger lies in its contract's folder."""
    file = importlib.import_module(grammar.module).__file__
    assert file is not None
    return grammar.left_out(cases(subject, Path(file).parent))


def features_without_cases(grammar: Grammar, subject: Subject) -> list[str]:
    """Return the features whose pattern matches no case, so that no ledger could ever speak of them."""
    known = [case.short_id for case in cases(replace(subject, known=None))]
    return [
        feature
        for feature, pattern in grammar.features.items()
        if not any(matches(pattern, short_id) for short_id in known)
    ]
