"""Generated sequences for ``replicate``: valid draws, short when they fail, and green where nothing is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from everyrank import World
from everyrank.fixtures.rogues.replicate import AlwaysSyncs, DividesWhatIsStillRead, Sums
from everyrank.suites.engine.subject import Subject
from everyrank.suites.errors import Deviation
from everyrank.suites.generate.data import encode
from everyrank.suites.generate.plan import SearchPlan
from everyrank.suites.generate.replay import perform, replay
from everyrank.suites.generate.search import Search
from everyrank.suites.replicate.grammar import (
    GRAMMAR,
    Backward,
    Buffer,
    Clear,
    Draw,
    Evaluate,
    Fail,
    Freeze,
    Load,
    Param,
    Replace,
    Save,
    SetBuffers,
    Step,
    Uneven,
    WrongDevice,
)
from everyrank.suites.replicate.subjects import DDP, EXEMPLAR, TORCH

from tests.drawn import check_journey, drawn, features_without_cases, hypothesis, left_out

EVERYTHING = frozenset(GRAMMAR.features)
ONE = (Param("p0", ()),)


def _rogue(kind: type) -> Subject:
    return replace(EXEMPLAR, name=kind.__name__, build=lambda module, **options: kind(module, **options).module)


SUMS = _rogue(Sums)


@hypothesis
@pytest.mark.world(2)
def test_a_draw_is_the_same_after_a_journey_as_json_and_as_code(world: World) -> None:
    draws = drawn(GRAMMAR, EXEMPLAR, world, SearchPlan(20))
    world.all_agree([encode(draw) for draw in draws])
    check_journey(GRAMMAR, draws)


@hypothesis
@pytest.mark.world(2)
def test_what_a_subject_does_not_claim_is_not_drawn(world: World) -> None:
    for draw in drawn(GRAMMAR, EXEMPLAR, world, SearchPlan(20), frozenset()):
        assert {type(action).__name__ for action in draw.actions} <= {
            *("Backward", "Step", "Clear", "Give", "SetRate", "AddGroup", "Save", "Load"),
        }
        assert all(not action.skips and action.synced for action in draw.actions if isinstance(action, Backward))
        assert (draw.option, draw.apart, draw.ignored, draw.buffers) == ("", False, "", ())
        assert {(param.layout, param.dtype, param.frozen, param.also) for param in draw.params} == {
            ("plain", "float64", False, "")
        }


@hypothesis
@pytest.mark.world(3, timeout=300)
def test_the_exemplar_is_green(world: World, process_group: Any) -> None:
    found = Search(GRAMMAR, EXEMPLAR, EVERYTHING, world).run(SearchPlan(4))
    assert (found.problem, found.draws) == ("", 4)


@pytest.mark.parametrize("subject", [TORCH, DDP], ids=lambda subject: subject.name)
def test_what_the_ledgers_of_torchs_own_speak_of_is_left_out(subject: Subject) -> None:
    without = left_out(GRAMMAR, subject)
    assert {"thawed parameters", "replaced parameters", "sparse gradients", "errors"} <= without
    assert not {"unused parameters", "tied parameters", "bucket views", "submodules"} & without


#: A sequence for each part of the grammar, which the exemplar gets right.
EVERY_ACTION = {
    "buffers": Draw(
        3,
        ONE,
        (SetBuffers(), Backward(), SetBuffers(reassigned=True), Evaluate()),
        buffers=(Buffer("b0", "int64"), Buffer("b1", "bfloat16", gaps=True), Buffer("b2", "bool")),
    ),
    "freeze and replace": Draw(
        3, ONE, (Freeze(0), Backward(), Freeze(0, frozen=False), Backward(), Replace(0), Backward(), Step())
    ),
    "unused": Draw(
        3,
        (Param("p0", (2,)), Param("other.p1", (3, 2), "transposed", also="p1_again")),
        (Backward(skips=(0,), skipped_by=(1,)), Clear(), Backward(skips=(1,), skipped_by=(0, 1, 2)), Step()),
    ),
    "accumulate": Draw(
        3,
        (Param("p0", (3, 2), "embedding"),),
        (Backward(synced=False, times=2), Backward(), Clear(set_to_none=False), Backward(), Step()),
    ),
    "no rows of an embedding": Draw(
        3, (Param("p0", (3, 2), "embedding"),), (Backward(skips=(0,), skipped_by=(1,)), Uneven((1, 2, 2)))
    ),
    "ignored": Draw(3, (Param("inner.p0", (2,)), *ONE), (Backward(), Step(), Save(), Load()), ignored="inner"),
    "apart": Draw(3, (Param("inner.p0", (2,)), Param("other.p1", (2,))), (Backward(), Step()), apart=True),
    "load": Draw(3, ONE, (Backward(), Step(), Save(), Step(), Load(fresh=True), Backward()), optimizer="momentum"),
    "in a group of its own": Draw(3, ONE, (Uneven((1, 3, 2)), Fail(2, "forward"), Fail(0, "idle"), WrongDevice())),
}


@pytest.mark.world(3, timeout=120)
@pytest.mark.parametrize("name", EVERY_ACTION)
def test_the_exemplar_keeps_each_part_of_the_grammar(world: World, process_group: Any, name: str) -> None:
    assert perform(GRAMMAR, EXEMPLAR, EVERY_ACTION[name], world) == ""


@pytest.mark.smoke
@pytest.mark.world(3)
def test_a_rogue_fails_where_its_fault_shows_and_nowhere_else(world: World, process_group: Any) -> None:
    synced = Draw(3, ONE, (Backward(), Step(), Clear()))
    replay(_rogue(AlwaysSyncs), synced)
    with pytest.raises(Deviation, match=r"action 1, Backward\(synced=False.*: off by"):
        replay(_rogue(AlwaysSyncs), replace(synced, actions=(Backward(synced=False),)))
    with pytest.raises(Deviation, match=r"action 1, Backward\(.*: off by"):
        replay(_rogue(DividesWhatIsStillRead), EVERY_ACTION["accumulate"])


def test_each_feature_belongs_to_cases_that_exist() -> None:
    assert features_without_cases(GRAMMAR, EXEMPLAR) == []
