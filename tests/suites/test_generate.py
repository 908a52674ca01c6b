"""Scripts of every contract, drawn and hand-written: one seed draws the same, and they find what is wrong alone."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from everyrank import World
from everyrank.fixtures.optimizers import row
from everyrank.fixtures.rogues.parameter_server import HasNoLock
from everyrank.fixtures.rogues.parameter_server.crossings import QueuesWithoutACopy
from everyrank.suites import options
from everyrank.suites.engine.case import cases
from everyrank.suites.engine.contract import contract
from everyrank.suites.engine.subject import Subject
from everyrank.suites.errors import Deviation
from everyrank.suites.moves.cases import generated
from everyrank.suites.moves.crossing import crossings
from everyrank.suites.moves.data import code, encode
from everyrank.suites.moves.file import stored
from everyrank.suites.moves.flow import flowing
from everyrank.suites.moves.player import Player, play, play_or_raise
from everyrank.suites.moves.script import Script, call
from everyrank.suites.moves.search import Search
from everyrank.suites.moves.shorten import shortest
from everyrank.suites.options import SearchPlan
from everyrank.suites.parameter_server import arena
from everyrank.suites.parameter_server.player import ServerPlayer
from everyrank.suites.rpc_optimizer.player import RpcPlayer
from everyrank.suites.sharded_optimizer.model import Model
from everyrank.suites.sharded_optimizer.player import ShardedPlayer
from everyrank.suites.sharded_optimizer.subjects import TORCH
from everyrank.suites.trainer.model import Model as Trained
from everyrank.suites.trainer.subjects.pipelines import GPIPE

from tests.drawn import (
    Row,
    Scripts,
    drawn,
    everything,
    features_without_cases,
    left_out,
    marks,
    player_of,
    printed_test,
    search,
)
from tests.drawn import meeting as meeting
from tests.scripts import SCRIPTS
from tests.scripts.parameter_server import NEAR, PARAMS
from tests.scripts.parameter_server import script as server_script
from tests.scripts.rpc_optimizer import DOUBLES
from tests.scripts.sharded_optimizer import DECAYING, DECAYS, MIXES, SUMS, rows_of

SHARDED = SCRIPTS["sharded-optimizer"].subject
SERVER = SCRIPTS["parameter-server"].subject

hypothesis = pytest.mark.skipif(not options.installed(), reason="needs Hypothesis")
draws = pytest.mark.group("draws")
smoke = pytest.mark.smoke
every_contract = pytest.mark.parametrize("scripts", SCRIPTS.values(), ids=SCRIPTS)


# --- what is drawn -----------------------------------------------------------------------------------


@hypothesis
@pytest.mark.world(2)
def test_the_same_seed_draws_the_same_and_another_seed_does_not(world: World) -> None:
    first = drawn(SHARDED, world, SearchPlan(30, seed=1))
    assert len(first) == 30
    assert first == drawn(SHARDED, world, SearchPlan(30, seed=1))
    assert first != drawn(SHARDED, world, SearchPlan(30, seed=2))


@hypothesis
@pytest.mark.world(3)
def test_the_same_seed_draws_the_same_whatever_modules_are_loaded(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [encode(draw) for draw in drawn(SHARDED, world, SearchPlan(30))]
    # An optimizer's variant is drawn by its number, which may be one of these.
    (tmp_path / "module_with_constants.py").write_text(f"CONSTANTS = {[*range(101, 190)]}")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("module_with_constants")
    assert [encode(draw) for draw in drawn(SHARDED, world, SearchPlan(30))] == before


@hypothesis
@draws
@pytest.mark.world(2)
@every_contract
def test_a_script_is_the_same_on_all_ranks_and_after_a_journey_as_json_and_as_code(
    world: World, scripts: Scripts
) -> None:
    found = drawn(scripts.subject, world, SearchPlan(20))
    world.all_agree([encode(script) for script in found])
    player = player_of(scripts.subject)
    names = {kind.__name__: kind for kind in player.kinds}
    for script in found:
        assert player.read(encode(script)) == script
        assert eval(code(script.model), names) == script.model


@hypothesis
@draws
@pytest.mark.world(2)
@pytest.mark.parametrize(
    ("scripts", "number"),
    [
        pytest.param(scripts, number, id=f"{name}-{number}")
        for name, scripts in SCRIPTS.items()
        for number in range(len(scripts.never))
    ],
)
def test_what_a_subject_is_not_asked_for_is_not_drawn(world: World, scripts: Scripts, number: int) -> None:
    without, needs = scripts.never[number]
    features = everything(scripts.subject) - (left_out(without) if isinstance(without, Subject) else without)
    assert any(needs(script) for script in drawn(scripts.subject, world, SearchPlan(60)))
    found = drawn(scripts.subject, world, SearchPlan(50), features)
    assert found
    assert not any(needs(script) for script in found)


@pytest.mark.parametrize(
    ("subject", "stated", "unstated"),
    [
        pytest.param(*ledger, id=f"{name}-{ledger[0].name}")
        for name, scripts in SCRIPTS.items()
        for ledger in scripts.ledgers
    ],
)
def test_what_a_ledger_or_a_choice_speaks_of_is_left_out(
    subject: Subject, stated: set[str], unstated: set[str]
) -> None:
    assert stated <= left_out(subject)
    assert not unstated & left_out(subject)


@hypothesis
@draws
@pytest.mark.world(2)
def test_tables_of_every_kind_are_drawn_with_optimizers_that_take_them(world: World) -> None:
    scripts = drawn(SHARDED, world, SearchPlan(300))
    given = [(script.model, rows) for script in scripts for rows in rows_of(script)]
    assert {model.optimizer for model, _ in given} == {"Adagrad", "SGD", "SparseAdam"}
    assert {param.cut is None for model, _ in given for param in model.params if param.table} == {True, False}
    alone = [rows for _, ranks in given for rows in ranks]
    assert any(len(set(rows)) < len(rows) for rows in alone), "rows are repeated"
    assert any(list(rows) != sorted(rows) for rows in alone), "rows are not sorted"
    assert any(() in ranks and len(set(ranks)) > 1 for _, ranks in given), "a rank looks up nothing"
    for model, _ in given:
        optimizer = row(model.optimizer)
        assert "sparse" in optimizer.needs | optimizer.takes
        assert "sparse" not in optimizer.variant(model.variant).refuses
    for script in scripts:
        if "sparse" in row(script.model.optimizer).needs:
            assert all(param.table for param in script.model.params)


@every_contract
def test_each_feature_belongs_to_cases_that_exist(scripts: Scripts) -> None:
    assert features_without_cases(scripts.subject) == []


# --- searches ----------------------------------------------------------------------------------------


@hypothesis
@draws
@pytest.mark.parametrize(
    ("subject", "features", "number"),
    [
        pytest.param(subject, everything(subject), scripts.draws, marks=[*marks(subject, 3, timeout=300)])
        for scripts in SCRIPTS.values()
        for subject in scripts.exemplars
    ]
    + [pytest.param(TORCH, everything(TORCH) - left_out(TORCH), 10, marks=[*marks(TORCH, 3, timeout=300)])],
    ids=lambda value: value.name if isinstance(value, Subject) else "",
)
def test_where_nothing_is_wrong_nothing_is_found(
    world: World, meeting: Any, subject: Subject, features: frozenset[str], number: int
) -> None:
    found = search(subject, world, number, features)
    assert found.problem == ""
    assert found.draws + found.rejected >= min(number, 10)
    assert found.draws > min(number, 5) - 1


@hypothesis
@draws
@pytest.mark.parametrize(
    "subject",
    [
        pytest.param(SUMS, marks=[*marks(SUMS, 3, timeout=300), smoke], id=SUMS.name),
        pytest.param(DOUBLES, marks=[*marks(DOUBLES, 3, timeout=300)], id=DOUBLES.name),
    ],
)
def test_a_planted_bug_shrinks_to_a_few_moves_and_the_printed_test_reproduces_it(
    world: World, meeting: Any, subject: Subject
) -> None:
    found = search(subject, world, 100)
    assert found.draw is not None
    assert len(found.draw.moves) <= 2
    assert len(found.draw.model.params) == 1
    test: Any = printed_test(subject, found.draw)
    assert {mark.name for mark in test.pytestmark} == {"world", *(["rpc"] if subject is DOUBLES else [])}
    with pytest.raises(Deviation) as caught:
        test(*meeting)
    assert str(caught.value) == found.problem


@hypothesis
@draws
@pytest.mark.world(3, timeout=300)
def test_a_bug_in_sparse_gradients_is_found(world: World, process_group: Any) -> None:
    found = search(MIXES, world, 600, shrink=False)
    assert found.draw is not None
    assert sum(param.table for param in found.draw.model.params) > 1


@pytest.mark.world(3)
def test_a_draw_is_replayed_without_hypothesis(world: World, process_group: Any) -> None:
    assert search(DECAYS, world, 0, draw=encode(DECAYING)).draw == DECAYING


class _Refused(Search):
    """A search whose reference refuses everything."""

    def play(self, draw: Script) -> None:
        return None


@pytest.mark.world(2)
def test_a_draw_that_the_reference_refuses_proves_nothing(world: World) -> None:
    plan = SearchPlan(0, draw=encode(Script(Model(2, ()), (call("step"),))))
    found = _Refused(SHARDED, everything(SHARDED), world).run(plan)
    assert (found.draws, found.rejected, found.draw) == (0, 1, None)


@draws
@pytest.mark.world(3, timeout=120)
def test_a_model_that_a_subject_refuses_as_declared_proves_nothing(world: World, process_group: Any) -> None:
    assert play(GPIPE, Script(Trained(3), (call("step"),))) is None
    assert play(GPIPE, Script(Trained(3, layers=(2,)), (call("step"),))) == ""


# --- hand-written scripts ----------------------------------------------------------------------------


@draws
@pytest.mark.parametrize(
    ("scripts", "row"),
    [
        pytest.param(
            scripts,
            row,
            id=f"{contract}-{name}",
            marks=[*marks(scripts.subject, row.script.size, timeout=120), *([smoke] if row.smoke else [])],
        )
        for contract, scripts in SCRIPTS.items()
        for name, row in scripts.rows.items()
    ],
)
def test_exemplars_pass_a_script_that_finds_what_is_wrong(
    world: World, meeting: Any, scripts: Scripts, row: Row
) -> None:
    for subject in scripts.exemplars:
        play_or_raise(subject, row.script)
    if row.deviation:
        with pytest.raises(Deviation, match=row.deviation):
            play_or_raise(scripts.variant(row), row.script)
    elif row.build is not None:
        play_or_raise(scripts.variant(row), row.script)


@draws
@pytest.mark.world(1)
def test_without_a_lock_two_reports_that_meet_at_some_line_are_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By no matter of chance: the same lines each time, and the second report waits for no lock."""
    monkeypatch.setattr(arena, "UNSEEN", 60.0)  # on a busy machine, too, it arrives before the first goes on
    subject = replace(SERVER, name="has no lock", build=HasNoLock)
    scripts = [server_script(call("meet", first=0, second=1, line=line)) for line in range(45)]
    first, again = ([bool(play(subject, script)) for script in scripts] for _ in range(2))
    assert first == again
    assert any(first)
    assert not all(first)


@draws
@pytest.mark.world(1)
def test_a_script_that_fails_is_made_short(world: World) -> None:
    subject = replace(SERVER, name="queues", build=QueuesWithoutACopy)
    meets = (call("report", trainer=0), call("overlap", last=1, late=2), call("overwrite", trainer=2), call("fill"))
    moves = (call("fill"), call("refuse", trainer=1, defect="count-none"), *meets)
    long = server_script(*moves, trainers=NEAR, params=PARAMS)
    found = shortest(subject, long, everything(SERVER))
    assert [each.move for each in found.script.moves] == ["overlap", "overwrite"]
    assert len(found.script.model.params) == 1


@pytest.mark.parametrize("player", [ServerPlayer, RpcPlayer, ShardedPlayer])
def test_the_crossings_are_those_in_their_file(player: type[Player]) -> None:
    kept = [crossing for crossing, full in stored(player) if not full]
    first = crossings(player).scripts
    expected = [*first, *flowing(player, first)]
    assert kept[: len(expected)] == expected, "python -m everyrank.suites.moves"


# --- options -----------------------------------------------------------------------------------------


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
    table = cases(SHARDED)
    assert [case.short_id for case in generated(table, SearchPlan(5))] == ["generate[ws3]"]
    monkeypatch.setattr(contract(SHARDED.contract), "player", None)
    assert generated(table, SearchPlan(5)) == []
