"""Scripts of ``parameter-server``: rank 0 has the server, and trainers report from all ranks."""

from __future__ import annotations

from typing import Any

from everyrank.fixtures.exemplars.parameter_server import BatchUpdateParameterServer, Gradients
from everyrank.fixtures.rogues import parameter_server as rogues
from everyrank.suites.moves.script import Call, Script, call
from everyrank.suites.parameter_server.model import Model, Param
from everyrank.suites.parameter_server.player import ServerPlayer
from everyrank.suites.parameter_server.subjects import EXAMPLE, EXEMPLAR

from tests.drawn import Row, Scripts

#: A parameter in a module, a frozen one, one with two names, and one with sparse gradients.
PARAMS = (
    Param("inner.p0", (2, 3), layout="transposed"),
    Param("p1", (2,), frozen=True),
    Param("p2", (3,), layout="gaps", also="other.p2_again"),
    Param("p3", (4, 3), sparse=True),
)
NEAR = (None, None, None)
FILL = call("fill")
SPARSE = (Param("p0", (4, 2), sparse=True), Param("p1", (2,)))


def script(*moves: Call, size: int = 1, params: tuple[Param, ...] = (Param("p0", (2,)),), **model: Any) -> Script:
    return Script(Model(size, params, **{"trainers": (None, None), "keeps": True, **model}), moves)


def _is_not_plain(script: Script) -> bool:
    model = script.model
    params = tuple(Param(param.name, param.shape) for param in model.params)
    plain = Model(model.size, params, (None,) * len(model.trainers))
    moves = {each.move for each in script.moves if each != call("act", changes="memory")}
    return model != plain or not moves <= {"report", "fill"}


def _is_not_for_the_example(script: Script) -> bool:
    moves = {each.move for each in script.moves}
    return bool(moves & {"meet", "overlap", "expire"}) or any(param.frozen for param in script.model.params)


class SumsBefore(BatchUpdateParameterServer):
    """Sums the parts of a sparse gradient before it applies them."""

    def apply(self, gradients: Gradients) -> None:
        super().apply([each.coalesce() if each is not None and each.is_sparse else each for each in gradients])


class Blocking(BatchUpdateParameterServer):
    """Returns the model itself, when it is there."""

    def update_and_fetch(self, gradients: Any, trainer: int) -> Any:
        return super().update_and_fetch(gradients, trainer).wait()


#: A script for each part of what a server does.
RIGHT = {
    "a model": script(
        *(call("fill", large=True), call("report", trainer=2), call("fill", missing=(0, 2, 3))),
        *(call("report", trainer=1, missing=(0,)), call("fill", reverse=True), FILL),
        size=3,
        params=PARAMS,
        trainers=NEAR,
        buffer=True,
    ),
    "trainers on workers": script(
        *(call("refuse", trainer=0, defect="shape-broadcasts"), call("report", trainer=3)),
        *(call("refuse", trainer=1, defect="nan", param=-1), FILL, call("overwrite", trainer=1, answer=True)),
        *(call("report_when_answered", trainer=2), FILL),
        size=3,
        params=PARAMS,
        trainers=(1, 0, None, 2),
        non_finite=False,
    ),
    "rounds that expire": script(
        *(call("report", trainer=2), call("expire"), FILL, call("report", trainer=1)),
        *(call("refuse", trainer=0, defect="count-none"), call("expire"), call("fill", reverse=True)),
        size=3,
        trainers=NEAR,
        expires=True,
    ),
    "reports that meet": script(
        *(call("meet", first=0, second=2, line=5), FILL, call("meet", first=2, second=1, line=20)),
        *(call("overlap", last=0, late=1), call("overlap", last=2, late=0, line=8)),
        *(call("report_when_answered", trainer=2), call("report_when_answered", trainer=1, last=True)),
        size=3,
        trainers=NEAR,
    ),
}

#: What each of these does wrong, the shortest script that shows it, and how it is reported.
WRONG: dict[str, tuple[Any, Script, str]] = {
    "a gradient of nobody": (
        rogues.NoneIsZero,
        script(call("fill", missing=(0,)), variant="weight-decay"),
        r"clean-round: move 1, .*trainer 0: p0: off by",
    ),
    "an answer before the round is full": (
        rogues.AnswersOneEarly,
        script(call("report", trainer=2), call("report", trainer=0), trainers=NEAR),
        "trainer 0 was answered when 2 of 3 had reported",
    ),
    "an answer that changes": (
        rogues.HandsOutItsModel,
        script(FILL, FILL),
        "the answer of trainer 0 in round 1, looked at again: off by",
    ),
    "a report that is taken": (
        rogues.TakesWhatBroadcasts,
        script(call("report", trainer=1), call("refuse", trainer=0, defect="shape-broadcasts")),
        "trainer 0 got no error but a Module for an answer",
    ),
    "what an expired round leaves": (
        rogues.KeepsTheExpiredRound,
        script(call("report", trainer=0), call("expire"), FILL, expires=True),
        r"move 3, fill\(\)",
    ),
    "a report during an update": (
        rogues.AddsToTheRunningUpdate,
        script(call("overlap", last=1, late=0)),
        r"overlap: move 1, .*trainer 0: p0: off by",
    ),
    "a report in an answer": (
        rogues.OpensTheNextRoundLast,
        script(call("report_when_answered", trainer=0)),
        "trainer 0 was refused: RuntimeError: trainer 0 has reported in this round",
    ),
    "a round that is open at the end": (
        rogues.TakesNoCopies,
        script(call("report", trainer=0), call("overwrite", trainer=0)),
        r"at the end: on rank 0: trainer 0: p0: off by",
    ),
}

SCRIPTS = Scripts(
    exemplars=(EXEMPLAR,),
    draws=10,
    rows={
        **{name: Row(right) for name, right in RIGHT.items()},
        **{name: Row(wrong, build, text) for name, (build, wrong, text) in WRONG.items()},
        "a sum of sparse gradients may be rounded once": Row(
            script(*[FILL] * 4, trainers=(None,) * 4, params=SPARSE, variant="momentum"), SumsBefore
        ),
        **{
            f"{part}, of a server that blocks": Row(RIGHT[part], Blocking, smoke=True, declares=frozenset({"blocks"}))
            for part in ("a model", "reports that meet")
        },
    },
    ledgers=(
        (EXEMPLAR, set(), set(ServerPlayer.features)),
        (
            EXAMPLE,
            {"missing gradients", "expired rounds", "reports that meet", "refuses nan", "frozen parameters"},
            {"reports during answers", "trainers on other workers", "SGD momentum", "refuses count-none"},
        ),
    ),
    never=(
        (frozenset(ServerPlayer.features), _is_not_plain),
        (EXAMPLE, _is_not_for_the_example),
    ),
)
