"""Find the multi-rank items among the collected ones, and note on each what it declares."""

from __future__ import annotations

import unittest
from dataclasses import replace
from typing import Any

import pytest
from everyrank.declare.declaration import (
    RANK_FIXTURES,
    SIZE_PARAMETER,
    Declaration,
    describe_wrong_scope,
    from_mark,
    rank_fixtures,
)
from everyrank.declare.stash import DECLARATION, MISUSE
from everyrank.declare.values import sizes
from everyrank.errors import MisuseError
from everyrank.faults import text
from everyrank.model.fault import Fault


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Make a parameter of a list of world sizes, with ids such as ``ws4``."""
    mark = metafunc.definition.get_closest_marker("world")
    assert mark is not None
    try:
        declared = from_mark(mark)
    except MisuseError:
        return  # reported as this test's error; the other tests run
    argument = mark.args[0] if mark.args else mark.kwargs.get("size")
    if declared.sizes is not None and not isinstance(argument, int):
        if SIZE_PARAMETER not in metafunc.fixturenames:
            metafunc.fixturenames.append(SIZE_PARAMETER)
        metafunc.parametrize(
            SIZE_PARAMETER, declared.sizes, ids=[f"ws{size}" for size in declared.sizes], indirect=True
        )


def declare(items: list[pytest.Item]) -> None:
    """Note on each multi-rank item its declaration, or why it cannot be run."""
    for item in items:
        definitions = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
        fixtures = rank_fixtures(definitions)
        asked = {name for mark in item.iter_markers("rank_fixtures") for name in mark.args}
        fixtures += [name for name in RANK_FIXTURES if name in asked and name not in fixtures]
        mark = item.get_closest_marker("world")
        by_class = bool(getattr(getattr(item, "cls", None), "everyrank_world", False))
        planned = [*item.iter_markers("faults")]
        multi_rank = bool(fixtures or mark is not None or by_class)
        if not multi_rank and not planned:
            continue
        try:
            if not multi_rank:
                raise MisuseError("the mark faults is for multi-rank tests: add the mark world, as in world(2)")
            if unknown := sorted(asked.difference(RANK_FIXTURES), key=str):
                known = ", ".join(RANK_FIXTURES)
                raise MisuseError(f"the mark rank_fixtures names {unknown[0]!r}, which is none: there are {known}")
            declared = replace(_declaration(item, mark, by_class), fixtures=tuple(fixtures), faults=_faults(planned))
            problem = describe_wrong_scope(definitions, fixtures)
            if problem:
                raise MisuseError(problem)
        except MisuseError as error:
            item.stash[MISUSE] = str(error)
        else:
            item.stash[DECLARATION] = declared


def _faults(marks: list[pytest.Mark]) -> tuple[Fault, ...]:
    """Return the faults that the marks of a test state, all for one run of it."""
    if unknown := next((name for mark in marks for name in mark.kwargs), None):
        raise MisuseError(f"the mark faults takes texts, and no keyword such as {unknown}")
    return text.faults([each for mark in marks for each in mark.args]) if marks else ()


def _declaration(item: pytest.Item, mark: pytest.Mark | None, by_class: bool) -> Declaration:
    if mark is not None:
        if not isinstance(item, pytest.Function):
            kind = type(item).__name__
            raise MisuseError(f"the mark world is for test functions and methods, not for a {kind}: take it off")
        declared = from_mark(mark)
        callspec: Any = getattr(item, "callspec", None)
        if declared.sizes and len(declared.sizes) > 1 and (callspec is None or SIZE_PARAMETER not in callspec.params):
            raise MisuseError(_cannot_be_a_list(item))
        return declared
    if by_class:
        # Classes of everyrank.testcase, written as torch writes its tests, declare more than a size.
        cls: Any = getattr(item, "cls", None)
        more: dict[str, Any] = getattr(cls, "everyrank_declares", lambda name: {})(item.name)
        return Declaration(sizes=_size_of_class(item), gpus_if_any=True, **more)
    return Declaration()


def _cannot_be_a_list(item: pytest.Function) -> str:
    if item.cls is not None and issubclass(item.cls, unittest.TestCase):
        return (
            "a method of a unittest class takes one world size, since unittest knows no parameters: "
            "write a method for each size, or a plain class"
        )
    return "a mark world that is added after collection takes one size: write the list above the test"


def _size_of_class(item: Any) -> tuple[int, ...]:
    cls = item.cls
    try:
        instance = cls(item.originalname) if issubclass(cls, unittest.TestCase) else cls()
        size = instance.world_size
        return sizes(int(size) if isinstance(size, str) and size.isdecimal() else size)
    except Exception as error:
        problem = str(error) if isinstance(error, MisuseError) else f"{type(error).__name__}: {error}"
        raise MisuseError(f"{cls.__name__}.world_size cannot be used: {problem}") from None
