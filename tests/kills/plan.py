"""What will be killed, when, and how: the seed and the number of the run decide, so it can be drawn again."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.kills.truth import TRUTHS

#: The launchers, and what may be killed under each, with weights.
ROLES: dict[str, dict[str, int]] = {
    "fork": {"rank": 18, "successor": 1},
    "spawn": {"rank": 18, "successor": 1},
    "torchrun": {"rank": 14, "successor": 2, "keeper": 4},
    "ray": {"rank": 8, "successor": 2, "keeper": 4, "actor": 6},
}
#: The last kill of a run: what follows is slow, or the run ends.
LAST: dict[str, dict[str, int]] = {
    "fork": {"keeper": 4, "controller": 3, "worker": 4, "successor": 2},
    "spawn": {"keeper": 4, "controller": 3, "worker": 4, "successor": 2},
    "torchrun": {"controller": 2, "member": 3, "agent": 3},
    "ray": {"controller": 3, "engine": 2},
}

#: What a run does not go on without. A worker of pytest-xdist is replaced.
ENDING = ("controller", "member", "agent", "engine")

#: A stopped rank costs the whole deadline, so it is rare. Whatever else is stopped is not the harness's to end.
_SIGNALS_OF_RANKS = {"SIGKILL": 36, "SIGSEGV": 9, "SIGABRT": 9, "SIGTERM": 5, "SIGSTOP": 1}
_SIGNALS = {"SIGKILL": 8, "SIGSEGV": 1, "SIGABRT": 1}

#: The share of kills, by launcher, of a process in the moment when it knocks at the controller's door; and among how
#: many knocks one is drawn. A run has about as many: of actors, and for each rank that one of them starts.
_KNOCKS: dict[str, float] = {"ray": 0.3}
_OF_KNOCKS = 24

#: How long after its event a kill comes, in seconds: at once, within a step, within a test, in some later test.
_DELAYS = (0.0, 0.005, 0.1, 1.0)

Event = tuple[str, str]


@dataclass(frozen=True)
class Shot:
    """One kill of a plan: after this event and delay, of a process of this role."""

    event: Event
    delay: float
    role: str
    pick: float  # which of the processes of this role, as a fraction of their number
    signal: str
    pid: int = 0  # the process that knocks, once it is known

    @property
    def ends_run(self) -> bool:
        return self.role in ENDING


@dataclass(frozen=True)
class Plan:
    """The kills of one run."""

    launcher: str
    seed: int
    run: int
    workers: int  # of pytest-xdist; 0: without
    shots: tuple[Shot, ...]


def draw(launcher: str, seed: int, run: int, most: int) -> Plan:
    """Draw the kills of a run: a third of this many at least."""
    rng = random.Random(f"{launcher}/{seed}/{run}")
    workers = 2 if launcher in ("fork", "spawn") and rng.random() < 0.25 else 0
    moments = _moments()
    chosen = sorted(rng.sample(range(len(moments)), rng.randint(-(-most // 3), most)))
    shots = [_shot(rng, moments[index], ROLES[launcher]) for index in chosen]
    share = _KNOCKS.get(launcher, 0.0)
    knocks = rng.sample(range(1, _OF_KNOCKS + 1), round(share * len(shots)))
    shots[: len(knocks)] = [_shot_at_a_knock(rng, number) for number in knocks]
    if rng.random() < 0.8:
        last = {role: weight for role, weight in LAST[launcher].items() if role != "worker" or workers}
        shots[-1] = _shot(rng, moments[chosen[-1]], last)
    return Plan(launcher, seed, run, workers, tuple(shots))


def pick(shot: Shot, processes: Mapping[str, Sequence[int]]) -> tuple[str, int] | None:
    """Return the role and the pid of what a shot kills: who knocks; or a rank if its role has no process, or None."""
    if shot.pid:
        return next(((role, shot.pid) for role, pids in processes.items() if shot.pid in pids), None)
    for role in (shot.role, "rank"):
        if pids := processes.get(role):
            return role, pids[int(shot.pick * len(pids))]
    return None


def _moments() -> list[Event]:
    kinds = ("start", "began", "middle", "finish")
    of_tests = [(kind, test) for test, truth in TRUTHS.items() for kind in kinds if truth.size or kind != "middle"]
    return [("collected", ""), *of_tests, ("finished", "")]


def _shot(rng: random.Random, event: Event, roles: Mapping[str, int]) -> Shot:
    role = _weighted(rng, roles)
    signals = _SIGNALS_OF_RANKS if role == "rank" else _SIGNALS
    delay = rng.random() * rng.choice(_DELAYS)
    return Shot(event, delay, role, rng.random(), _weighted(rng, signals))


def _shot_at_a_knock(rng: random.Random, number: int) -> Shot:
    """Kill who knocks: mostly before it is let in, for which the controller waits a moment."""
    delay = rng.random() * rng.choice((0.0, 0.0, 0.005, 0.1))
    return Shot(("knock", str(number)), delay, "actor", rng.random(), _weighted(rng, _SIGNALS))


def _weighted(rng: random.Random, weights: Mapping[str, int]) -> str:
    return rng.choices(list(weights), list(weights.values()))[0]
