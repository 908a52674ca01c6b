"""Scripts of ``parameter-server``: rank 0 has the server, and trainers report from all ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from everyrank import World
from everyrank.fixtures.exemplars.parameter_server import BatchUpdateParameterServer, Gradients
from everyrank.fixtures.rogues import parameter_server as rogues
from everyrank.fixtures.rogues.parameter_server.crossings import QueuesWithoutACopy
from everyrank.suites.errors import Deviation
from everyrank.suites.moves.crossing import crossings, stored
from everyrank.suites.moves.player import play, play_or_raise
from everyrank.suites.moves.script import Script, call
from everyrank.suites.moves.shorten import shortest
from everyrank.suites.options import SearchPlan
from everyrank.suites.parameter_server import arena
from everyrank.suites.parameter_server.model import Model, Param
from everyrank.suites.parameter_server.player import ServerPlayer
from everyrank.suites.parameter_server.subjects import EXAMPLE, EXEMPLAR

from tests.drawn import check_journey, drawn, features_without_cases, hypothesis, left_out, search

EVERYTHING = frozenset(ServerPlayer.features)

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


def _script(*moves: Any, size: int = 1, params: tuple[Param, ...] = ONE, **model: Any) -> Script:
    return Script(Model(size, params, **{"trainers": (None, None), "keeps": True, **model}), moves)


@hypothesis
@pytest.mark.world(1)
def test_a_draw_is_the_same_after_a_journey_as_json_and_as_code(world: World) -> None:
    check_journey(EXEMPLAR, [script.model for script in drawn(EXEMPLAR, world, SearchPlan(20))])


@hypothesis
@pytest.mark.world(1)
def test_a_subject_that_claims_nothing_more_gets_plain_rounds(world: World) -> None:
    for script in drawn(EXEMPLAR, world, SearchPlan(20), frozenset()):
        model = script.model
        assert model == Model(model.size, model.params, (None,) * len(model.trainers))
        assert {each.move for each in script.moves} <= {"report", "fill"}
        for param in model.params:
            assert param == Param(param.name, param.shape)


@hypothesis
@pytest.mark.world(1)
def test_what_the_ledger_of_torchs_example_speaks_of_is_not_asked_of_it(world: World) -> None:
    assert not left_out(EXEMPLAR)
    features = left_out(EXAMPLE)
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
    scripts = drawn(EXAMPLE, world, SearchPlan(30), EVERYTHING - features)
    made = {each.move for script in scripts for each in script.moves}
    assert {"report", "fill", "report_when_answered"} <= made
    assert not made & {"meet", "overlap", "expire"}
    assert not any(param.frozen for script in scripts for param in script.model.params)


@hypothesis
@with_agents
@pytest.mark.world(3, timeout=300)
def test_the_exemplar_is_green(world: World, warm_rpc_agent: Any) -> None:
    found = search(EXEMPLAR, world, 10, EVERYTHING)
    assert found.problem == ""
    assert (found.rejected, found.draws) == (0, 10)


#: A script for each part of what a server does, which the exemplar gets right.
EVERY_PART = {
    "a model": _script(
        *(call("fill", large=True), call("report", trainer=2), call("fill", missing=(0, 2, 3))),
        *(call("report", trainer=1, missing=(0,)), call("fill", reverse=True), call("fill")),
        params=PARAMS,
        trainers=NEAR,
        buffer=True,
    ),
    "trainers on workers": _script(
        *(call("refuse", trainer=0, defect="shape-broadcasts"), call("report", trainer=3)),
        *(call("refuse", trainer=1, defect="nan", param=-1), call("fill"), call("overwrite", trainer=1, answer=True)),
        *(call("report_when_answered", trainer=2), call("fill")),
        size=3,
        params=PARAMS,
        trainers=(1, 0, None, 2),
        non_finite=False,
    ),
    "rounds that expire": _script(
        *(call("report", trainer=2), call("expire"), call("fill"), call("report", trainer=1)),
        *(call("refuse", trainer=0, defect="count-none"), call("expire"), call("fill", reverse=True)),
        trainers=NEAR,
        expires=True,
    ),
    "reports that meet": _script(
        *(call("meet", first=0, second=2, line=5), call("fill"), call("meet", first=2, second=1, line=20)),
        *(call("overlap", last=0, late=1), call("overlap", last=2, late=0, line=8)),
        *(call("report_when_answered", trainer=2), call("report_when_answered", trainer=1, last=True)),
        trainers=NEAR,
    ),
}


@with_agents
@pytest.mark.world(3, timeout=120)
@pytest.mark.parametrize("part", EVERY_PART)
def test_the_exemplar_keeps_each_part(world: World, warm_rpc_agent: Any, part: str) -> None:
    script = EVERY_PART[part]
    play_or_raise(EXEMPLAR, replace(script, model=replace(script.model, size=3)))


#: What each of these does wrong, the shortest script that shows it, and how it is reported.
FOUND = {
    "a gradient of nobody": (
        rogues.NoneIsZero,
        _script(call("fill", missing=(0,)), variant="weight-decay"),
        r"clean-round: move 1, .*trainer 0: p0: off by",
    ),
    "an answer before the round is full": (
        rogues.AnswersOneEarly,
        _script(call("report", trainer=2), call("report", trainer=0), trainers=NEAR),
        "trainer 0 was answered when 2 of 3 had reported",
    ),
    "an answer that changes": (
        rogues.HandsOutItsModel,
        _script(call("fill"), call("fill")),
        "the answer of trainer 0 in round 1, looked at again: off by",
    ),
    "a report that is taken": (
        rogues.TakesWhatBroadcasts,
        _script(call("report", trainer=1), call("refuse", trainer=0, defect="shape-broadcasts")),
        "trainer 0 got no error but a Module for an answer",
    ),
    "what an expired round leaves": (
        rogues.KeepsTheExpiredRound,
        _script(call("report", trainer=0), call("expire"), call("fill"), expires=True),
        r"move 3, fill\(\)",
    ),
    "a report during an update": (
        rogues.AddsToTheRunningUpdate,
        _script(call("overlap", last=1, late=0)),
        r"overlap: move 1, .*trainer 0: p0: off by",
    ),
    "a report in an answer": (
        rogues.OpensTheNextRoundLast,
        _script(call("report_when_answered", trainer=0)),
        "trainer 0 was refused: RuntimeError: trainer 0 has reported in this round",
    ),
    "a round that is open at the end": (
        rogues.TakesNoCopies,
        _script(call("report", trainer=0), call("overwrite", trainer=0)),
        r"at the end: on rank 0: trainer 0: p0: off by",
    ),
}


@pytest.mark.world(1)
@pytest.mark.parametrize("fault", FOUND)
def test_a_script_finds_what_is_wrong(world: World, fault: str) -> None:
    build, script, text = FOUND[fault]
    with pytest.raises(Deviation, match=text):
        play_or_raise(replace(EXEMPLAR, name=fault, build=build), script)


class SumsBefore(BatchUpdateParameterServer):
    """Sums the parts of a sparse gradient before it applies them."""

    def apply(self, gradients: Gradients) -> None:
        super().apply([each.coalesce() if each is not None and each.is_sparse else each for each in gradients])


@pytest.mark.world(1)
def test_a_sum_of_sparse_gradients_may_be_rounded_once(world: World) -> None:
    params = (Param("p0", (4, 2), sparse=True), Param("p1", (2,)))
    script = _script(*[call("fill")] * 4, trainers=(None,) * 4, params=params, variant="momentum")
    play_or_raise(replace(EXEMPLAR, name="sums before", build=SumsBefore), script)


@pytest.mark.world(1)
def test_without_a_lock_two_reports_that_meet_at_some_line_are_lost(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By no matter of chance: the same lines each time, and the second report waits for no lock."""
    monkeypatch.setattr(arena, "UNSEEN", 60.0)  # on a busy machine, too, it arrives before the first goes on
    subject = replace(EXEMPLAR, name="has no lock", build=rogues.HasNoLock)
    scripts = [_script(call("meet", first=0, second=1, line=line)) for line in range(45)]
    first, again = ([bool(play(subject, script)) for script in scripts] for _ in range(2))
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
    for part in ("a model", "reports that meet"):
        play_or_raise(subject, replace(EVERY_PART[part], model=replace(EVERY_PART[part].model, size=3)))


def test_each_feature_belongs_to_cases_that_exist() -> None:
    assert features_without_cases(EXEMPLAR) == []


# --- crossings ---------------------------------------------------------------------------------------


def test_the_crossings_are_those_in_their_file() -> None:
    kept = [crossing for crossing, full in stored(ServerPlayer) if not full]
    assert kept == crossings(ServerPlayer).scripts, "python -m everyrank.suites.moves"


@pytest.mark.world(1)
def test_a_script_that_fails_is_made_short(world: World) -> None:
    subject = replace(EXEMPLAR, name="queues", build=QueuesWithoutACopy)
    meets = (call("report", trainer=0), call("overlap", last=1, late=2), call("overwrite", trainer=2), call("fill"))
    long = _script(call("fill"), call("refuse", trainer=1, defect="count-none"), *meets, trainers=NEAR, params=PARAMS)
    found = shortest(subject, long, EVERYTHING)
    assert [each.move for each in found.script.moves] == ["overlap", "overwrite"]
    assert len(found.script.model.params) == 1
