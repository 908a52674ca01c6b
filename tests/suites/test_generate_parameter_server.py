"""Sequences drawn for ``parameter-server``: rank 0 has the server, and trainers report from all ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from everyrank import World
from everyrank.fixtures.exemplars.parameter_server import BatchUpdateParameterServer
from everyrank.fixtures.rogues import parameter_server as rogues
from everyrank.suites.engine.subject import Subject
from everyrank.suites.errors import Deviation
from everyrank.suites.generate.plan import SearchPlan
from everyrank.suites.generate.replay import perform, replay
from everyrank.suites.generate.search import Search
from everyrank.suites.parameter_server import drawn_server
from everyrank.suites.parameter_server.grammar import (
    GRAMMAR,
    AtOnce,
    Draw,
    Expire,
    Meet,
    Overlap,
    Param,
    Round,
    Wrong,
)
from everyrank.suites.parameter_server.subjects import EXAMPLE, EXEMPLAR

from tests.drawn import check_journey, drawn, features_without_cases, hypothesis, left_out, search

EVERYTHING = frozenset(GRAMMAR.features)
DIVIDES = replace(EXEMPLAR, name="divides", build=rogues.DividesByTwo)

with_agents = pytest.mark.rpc(num_worker_threads=4, rpc_timeout=20)

ONE = (Param("p0", (2,)),)
#: A parameter in a module, a frozen one, one with two names, and one with sparse gradients.
PARAMS = (
    Param("inner.p0", (2, 3), layout="transposed"),
    Param("p1", (2,), frozen=True),
    Param("p2", (3,), layout="gaps", also="other.p2_again"),
    Param("p3", (4, 3), sparse=True),
)
NEAR = (None, None, None)


@hypothesis
@pytest.mark.world(1)
def test_a_draw_is_the_same_after_a_journey_as_json_and_as_code(world: World) -> None:
    check_journey(GRAMMAR, drawn(GRAMMAR, EXEMPLAR, world, SearchPlan(20)))


@hypothesis
@pytest.mark.world(1)
def test_a_subject_that_claims_nothing_more_gets_plain_rounds(world: World) -> None:
    for draw in drawn(GRAMMAR, EXEMPLAR, world, SearchPlan(20), frozenset()):
        assert draw.trainers == (None,) * len(draw.trainers)
        assert (draw.optimizer, draw.variant, draw.keeps, draw.expires) == ("SGD", "lr", False, False)
        for action in draw.actions:
            assert action == Round(action.order, times=action.times)
        for param in draw.params:
            assert param == Param(param.name, param.shape)


@hypothesis
@pytest.mark.world(1)
def test_what_the_ledger_of_torchs_example_speaks_of_is_not_drawn_for_it(world: World) -> None:
    assert not left_out(GRAMMAR, EXEMPLAR)
    features = left_out(GRAMMAR, EXAMPLE)
    assert {
        "missing gradients",
        "expired rounds",
        "reports that meet",
        "refuses nan",
        "frozen parameters",
    } <= features
    assert (
        not {"reports during answers", "trainers on other workers", "SGD momentum", "refuses count-none"} & features
    )
    draws = drawn(GRAMMAR, EXAMPLE, world, SearchPlan(30), EVERYTHING - features)
    actions = {type(action) for draw in draws for action in draw.actions}
    assert actions == {Round, AtOnce}
    assert not any(param.frozen for draw in draws for param in draw.params)


@hypothesis
@pytest.mark.world(1)
def test_a_failing_draw_is_made_shorter_for_a_limited_time_only(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[Draw] = []

    def fail(subject: Subject, draw: Draw) -> Iterator[None]:
        if len(draw.actions) > 2:
            failed.append(draw)
            raise Deviation("too long")
        yield from [None] * (len(draw.actions) + 1)

    search = partial(Search, replace(GRAMMAR, carry_out=fail), EXEMPLAR, EVERYTHING, world)
    shortest = search().run(SearchPlan(10)).draw
    first = failed[0]
    assert shortest != first
    failed.clear()
    monkeypatch.setattr("everyrank.suites.generate.search.SHRINKING", 0.0)
    found = search().run(SearchPlan(10))
    assert (found.draw, found.problem) == (first, "when the objects are made: on rank 0: too long")
    assert set(failed) == {first}


@hypothesis
@with_agents
@pytest.mark.world(3, timeout=300)
def test_the_exemplar_is_green(world: World, warm_rpc_agent: Any) -> None:
    found = search(GRAMMAR, EXEMPLAR, world, 10, EVERYTHING)
    assert found.problem == ""
    assert found.rejected == 0
    assert found.draws == (0 if world.rank else 10)


#: A draw for each part of the grammar, which the exemplar gets right.
EVERY_PART = {
    "a model": Draw(
        3,
        PARAMS,
        NEAR,
        (
            Round((2, 0, 1), times=3, large=True),
            Round((0, 2, 1), missing=((0, 0), (1, 0), (2, 0), (1, 3))),
            Round((1, 2, 0)),
        ),
        variant="lr",
        keeps=True,
        buffer=True,
    ),
    "trainers on workers": Draw(
        3,
        PARAMS,
        (1, 0, None, 2),
        (
            Round((3, 0, 2, 1), wrong=(Wrong(0, "shape-broadcasts", 0, 0), Wrong(1, "nan", 2, 3))),
            AtOnce((0, 1, 2, 3), late=2),
            Round((0, 1, 2, 3), spoiler=1, spoils="answer"),
        ),
        keeps=True,
    ),
    "wrong reports": Draw(
        3,
        PARAMS,
        (None, None),
        tuple(
            Round((0, 1), wrong=(Wrong(1, defect, 0, 1), Wrong(1, defect, 0, 0)))
            for defect in ("shape-transposed", "dtype-whole", "count-none", "inf")
        ),
    ),
    "values that are not finite": Draw(
        3, ONE, (None, None), (Round((0, 1), taken=(Wrong(1, "nan"),)), Round((1, 0))), non_finite=True
    ),
    "rounds that expire": Draw(
        3, ONE, (None, 1, None), (Expire((2,)), Round((0, 1, 2)), Expire((1, 0)), Round((2, 1, 0))), expires=True
    ),
    "trainers that overwrite": Draw(
        3,
        ONE,
        (None, None),
        (
            Round((0, 1), spoiler=0, spoils="reported"),
            Round((0, 1), spoiler=0, spoils="gradients"),
            Round((0, 1), spoiler=1, spoils="answer"),
            Round((0, 1)),
        ),
        keeps=True,
    ),
    "reports that meet": Draw(3, ONE, NEAR, tuple(Meet((2, 0, 1), 1, line) for line in range(0, 60, 5))),
    "reports during updates": Draw(3, ONE, NEAR, tuple(Overlap((1, 0, 2), 0, line) for line in range(0, 40, 4))),
    "reports during answers": Draw(3, ONE, NEAR, (AtOnce((0, 1, 2), 0), AtOnce((2, 1, 0), 0))),
}


@with_agents
@pytest.mark.world(3, timeout=120)
@pytest.mark.parametrize("part", EVERY_PART)
def test_the_exemplar_keeps_each_part_of_the_grammar(world: World, warm_rpc_agent: Any, part: str) -> None:
    if world.rank == 0:
        assert perform(GRAMMAR, EXEMPLAR, EVERY_PART[part], None) == ""


def _draw(*actions: Any, **more: Any) -> Draw:
    return Draw(3, ONE, **{"trainers": (None, None), "actions": actions, **more})


#: What each of these does wrong, and the shortest draw that shows it.
FOUND = {
    "a gradient of nobody": (
        rogues.NoneIsZero,
        _draw(Round((0, 1), missing=((0, 0), (1, 0))), variant="weight-decay"),
        r"action 1, .*trainer 0: p0: off by",
    ),
    "an answer before the round is full": (
        rogues.AnswersOneEarly,
        _draw(Round((2, 0, 1)), trainers=NEAR),
        "trainer 0 was answered when 2 of 3 had reported",
    ),
    "an answer that changes": (
        rogues.HandsOutItsModel,
        _draw(Round((0, 1), times=2), keeps=True),
        "the answer of trainer 0 in round 1, looked at again: off by",
    ),
    "a report that is taken": (
        rogues.TakesWhatBroadcasts,
        _draw(Round((1, 0), wrong=(Wrong(0, "shape-broadcasts", before=1),))),
        "trainer 0 got no error but a Module for an answer",
    ),
    "what an expired round leaves": (
        rogues.KeepsTheExpiredRound,
        _draw(Expire((0,)), Round((0, 1)), expires=True),
        "action 2, Round",
    ),
    "a report during an update": (
        rogues.AddsToTheRunningUpdate,
        _draw(Overlap((0, 1), 0)),
        r"action 1, Overlap.*trainer 0: p0: off by",
    ),
    "a report in an answer": (
        rogues.OpensTheNextRoundLast,
        _draw(AtOnce((0, 1), 0)),
        "trainer 0 was refused: RuntimeError: trainer 0 has reported in this round",
    ),
}


@with_agents
@pytest.mark.world(3)
@pytest.mark.parametrize("fault", FOUND)
def test_a_draw_finds_what_is_wrong(world: World, warm_rpc_agent: Any, fault: str) -> None:
    build, draw, text = FOUND[fault]
    subject = replace(EXEMPLAR, name=fault, build=build)
    if world.rank:
        replay(subject, draw)  # rank 0 carries it out
        return
    with pytest.raises(Deviation, match=text):
        replay(subject, draw)


@with_agents
@pytest.mark.world(3)
def test_without_a_lock_two_reports_that_meet_at_some_line_are_lost(
    world: World, warm_rpc_agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By no matter of chance: the same lines each time, and the second report waits for no lock."""
    if world.rank:
        return
    monkeypatch.setattr(drawn_server, "_UNSEEN", 60.0)  # on a busy machine, too, it arrives before the first goes on
    subject = replace(EXEMPLAR, name="has no lock", build=rogues.HasNoLock)
    draws = [_draw(Meet((0, 1), 0, line)) for line in range(45)]
    first, again = ([bool(perform(GRAMMAR, subject, draw, None)) for draw in draws] for _ in range(2))
    assert first == again
    assert any(first)
    assert not all(first)


class Blocking(BatchUpdateParameterServer):
    """Returns the model itself, when it is there."""

    def update_and_fetch(self, gradients: Any, trainer: int) -> Any:
        return super().update_and_fetch(gradients, trainer).wait()


@pytest.mark.smoke
@pytest.mark.world(3)
@with_agents
def test_a_server_that_blocks_keeps_them_too(world: World, warm_rpc_agent: Any) -> None:
    subject = replace(EXEMPLAR, name="blocking", build=Blocking, declares=frozenset({"blocks"}))
    for part in ("a model", "wrong reports", "trainers that overwrite", "reports during answers"):
        if world.rank == 0:
            assert perform(GRAMMAR, subject, EVERY_PART[part], None) == "", part


def test_each_feature_belongs_to_cases_that_exist() -> None:
    assert features_without_cases(GRAMMAR, EXEMPLAR) == []
