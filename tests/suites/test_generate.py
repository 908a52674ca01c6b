"""Generated sequences: the same from the same seed, short when they fail, and green where nothing is wrong."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from everyrank import World
from everyrank.fixtures.rogues.sharded_optimizer.steps import NoneIsZero, SumsForMean
from everyrank.suites import options
from everyrank.suites.engine.case import cases
from everyrank.suites.engine.contract import contract
from everyrank.suites.errors import Deviation
from everyrank.suites.moves.cases import generated
from everyrank.suites.moves.data import encode
from everyrank.suites.moves.player import play_or_raise
from everyrank.suites.moves.script import Script, call
from everyrank.suites.moves.search import Search
from everyrank.suites.options import SearchPlan
from everyrank.suites.sharded_optimizer.model import Model, Param
from everyrank.suites.sharded_optimizer.player import ShardedPlayer
from everyrank.suites.sharded_optimizer.subjects import EXEMPLAR, TORCH

from tests.drawn import drawn, features_without_cases, hypothesis, left_out, printed_test, search

EVERYTHING = frozenset(ShardedPlayer.features)
SUMS = replace(EXEMPLAR, name="sums", build=SumsForMean)
DECAYS = replace(EXEMPLAR, name="decays", build=NoneIsZero)


@hypothesis
@pytest.mark.world(2)
def test_the_same_seed_draws_the_same_and_another_seed_does_not(world: World) -> None:
    first = drawn(EXEMPLAR, world, SearchPlan(30, seed=1))
    assert len(first) == 30
    assert first == drawn(EXEMPLAR, world, SearchPlan(30, seed=1))
    assert first != drawn(EXEMPLAR, world, SearchPlan(30, seed=2))


@hypothesis
@pytest.mark.world(3)
def test_the_same_seed_draws_the_same_whatever_modules_are_loaded(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [encode(draw) for draw in drawn(EXEMPLAR, world, SearchPlan(30))]
    # An optimizer's variant is drawn by its number, which may be one of these.
    (tmp_path / "module_with_constants.py").write_text(f"CONSTANTS = {[*range(101, 190)]}")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("module_with_constants")
    assert [encode(draw) for draw in drawn(EXEMPLAR, world, SearchPlan(30))] == before


@hypothesis
@pytest.mark.world(3, timeout=300)
def test_a_planted_bug_shrinks_to_a_few_actions_and_the_printed_test_reproduces_it(
    world: World, process_group: Any
) -> None:
    found = search(SUMS, world, 100)
    assert found.draw is not None
    assert len(found.draw.moves) <= 2
    assert len(found.draw.model.params) == 1
    with pytest.raises(Deviation) as caught:
        printed_test(SUMS, found.draw)(process_group)
    assert str(caught.value) == found.problem


@hypothesis
@pytest.mark.world(3, timeout=300)
def test_the_exemplar_is_green(world: World, process_group: Any) -> None:
    found = search(EXEMPLAR, world, 25)
    assert found.problem == ""
    assert found.draws + found.rejected >= 10
    assert found.draws > 5


@hypothesis
@pytest.mark.world(3, timeout=300)
def test_torchs_own_is_green_in_what_its_ledger_and_its_lacks_leave(world: World, process_group: Any) -> None:
    without = left_out(TORCH)
    assert {"closures", "clipping", "errors", "saves and loads"} <= without
    assert "missing gradients" not in without
    found = search(TORCH, world, 10, EVERYTHING - without)
    assert found.problem == ""
    assert found.draws > 5


@pytest.mark.world(3)
def test_a_draw_is_replayed_without_hypothesis(world: World, process_group: Any) -> None:
    decaying = Script(Model(3, (Param("p0", (2,)),), variant="weight-decay"), (call("train", missing=(0,)),))
    play_or_raise(EXEMPLAR, decaying)
    with pytest.raises(Deviation, match=r"^grad\.none: move 1, train\(missing=\(0,\)\): on rank 0: p0: off by"):
        play_or_raise(DECAYS, decaying)
    encoded = encode(decaying)
    assert search(DECAYS, world, 0, draw=encoded).draw == decaying


class _Refused(Search):
    """A search whose reference refuses everything."""

    def play(self, draw: Script) -> None:
        return None


@pytest.mark.world(2)
def test_a_draw_that_the_reference_refuses_proves_nothing(world: World) -> None:
    plan = SearchPlan(0, draw=encode(Script(Model(2, ()), (call("step"),))))
    found = _Refused(EXEMPLAR, EVERYTHING, world).run(plan)
    assert (found.draws, found.rejected, found.draw) == (0, 1, None)


def test_each_feature_belongs_to_cases_that_exist() -> None:
    assert features_without_cases(EXEMPLAR) == []


class _Config:
    """As much of pytest's configuration as the options ask for."""

    def __init__(self, **given: Any) -> None:
        self.given = {"generate": 0, "generate_seed": "0", "generate_draw": "", **given}
        self.stash = pytest.Stash()
        self.pluginmanager = pytest.PytestPluginManager()

    def getoption(self, name: str) -> Any:
        return self.given[name]


def _configured(**given: Any) -> SearchPlan | None:
    config: Any = _Config(**given)
    options.configure(config)
    return config.stash.get(options.PLAN, None)


def test_nothing_is_generated_unless_it_is_asked_for() -> None:
    assert _configured() is None


def test_without_hypothesis_one_sentence_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "installed", lambda: False)
    with pytest.raises(pytest.UsageError, match=r"needs Hypothesis: pip install hypothesis"):
        _configured(generate=5)
    assert _configured(generate_draw="{}") is not None  # which needs none


def test_a_seed_is_a_number_or_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(options, "installed", lambda: True)
    assert _configured(generate=5) == SearchPlan(5, 0)
    assert _configured(generate=5, generate_seed="7") == SearchPlan(5, 7)
    first, second = (_configured(generate=5, generate_seed="free") for _ in range(2))
    assert first != second
    with pytest.raises(pytest.UsageError, match="--generate-seed takes a number or `free`, not 'x'"):
        _configured(generate=5, generate_seed="x")


def test_a_plan_names_the_options_that_repeat_it() -> None:
    assert SearchPlan(5, 7).options() == ["--generate=5", "--generate-seed=7"]
    assert SearchPlan(0, draw="{}").options() == ["--generate-draw={}"]


def test_a_contract_without_a_player_has_no_generated_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    table = cases(EXEMPLAR)
    assert [case.short_id for case in generated(table, SearchPlan(5))] == ["generate[ws3]"]
    monkeypatch.setattr(contract(EXEMPLAR.contract), "player", None)
    assert generated(table, SearchPlan(5)) == []
