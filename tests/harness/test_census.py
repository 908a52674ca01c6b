"""A census asks a world that stands still, and ignores the threads that its own question wakes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
from everyrank.controller import census, stillness
from everyrank.controller.census import Census
from everyrank.controller.stillness import Look
from everyrank.wire.messages import WitnessStatement

PIDS = [100, 200]
#: Each rank's main thread and its witness; the witness's counts come after the main threads'.
AT_REST = {(100, 100): 5, (100, 101): 1, (200, 200): 5, (200, 201): 1}
MAINS = [(100, 100), (200, 200)]
ASKED = {**AT_REST, (100, 101): 2, (200, 201): 2}

Turns = Callable[..., list[dict[int, WitnessStatement] | None]]


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def asked_times() -> list[float]:
    """The times at which the world of ``turns`` was asked."""
    return []


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch, asked_times: list[float]) -> Turns:
    """Return what a census concludes from these looks at a world; both witnesses answer when asked."""

    def run(
        looks: Sequence[dict[tuple[int, int], int] | None],
        sleep: str = "",
        rests: list[float] | None = None,
        children: frozenset[int] = frozenset(),
        idle: Sequence[int] = (),
        late: float = 0.0,
    ) -> list[dict[int, WitnessStatement] | None]:
        clock, left = Clock(), list(looks)
        asked: list[str] = []

        def look(pids: Sequence[int], time: float) -> Look | None:
            switches = left.pop(0)
            mains = dict.fromkeys(MAINS, 0.0)
            return None if switches is None else Look(time, switches, mains=mains, children=children)

        monkeypatch.setattr(stillness, "look", look)
        monkeypatch.setattr(census, "time", clock)
        monkeypatch.setattr(census, "ask", lambda fifo: asked.append(fifo) or True)
        watching, answers = Census("", test=1), []
        while left:
            clock.now = watching.next_at + late * (len(left) == len(looks) // 2)
            answers.append(watching.turn(dict(enumerate(PIDS)), frozenset()))
            if watching.long_rest() and rests is not None:
                rests.append(clock.now)
            while asked:
                rank = len(asked) - 1
                asked_times.extend([clock.now] * (rank == 0))
                asked.pop()
                stated = WitnessStatement(1, thread=PIDS[rank] + 1, sleep=sleep, idle_children=list(idle))
                watching.hear(rank, stated)
        return answers

    return run


def test_a_world_at_rest_is_asked_and_believed(turns: Turns) -> None:
    answers = turns([AT_REST] * 4 + [ASKED])
    assert answers[:4] == [None] * 4
    assert answers[4] is not None
    assert sorted(answers[4]) == [0, 1]


def test_a_witness_that_is_still_awake_is_waited_for(turns: Turns) -> None:
    answers = turns([AT_REST] * 4 + [None, None, ASKED])
    assert answers[:6] == [None] * 6
    assert answers[6] is not None
    assert sorted(answers[6]) == [0, 1]


def test_a_rank_that_has_run_since_it_was_asked_is_not_stuck(turns: Turns) -> None:
    assert turns([AT_REST] * 4 + [None, {**ASKED, (200, 200): 6}]) == [None] * 6


def test_a_rank_that_runs_on_ends_the_census(turns: Turns) -> None:
    """It waits for answers for at most a second; then the world must stand still again."""
    assert turns([AT_REST] * 4 + [None] * 200 + [ASKED]) == [None] * 205


def test_a_world_whose_answers_decided_nothing_is_not_asked_again_until_it_moves(turns: Turns) -> None:
    ran = {**ASKED, (200, 200): 6}
    moved = {**ran, (100, 100): 6}
    answers = turns([AT_REST] * 4 + [ran] * 10 + [moved] * 5)
    assert answers[:18] == [None] * 18
    assert answers[18] is not None


def polling(polls: int) -> dict[tuple[int, int], int]:
    return {**AT_REST, (100, 100): 5 + polls}


def test_a_main_thread_may_poll_a_store_if_its_witness_states_that(turns: Turns) -> None:
    looks = [*map(polling, (0, 30, 60, 90)), {**ASKED, **polling(91), (100, 101): 2, (200, 201): 2}]
    assert turns(looks, sleep="polls")[4] is not None
    assert turns(looks)[4] is None


def test_a_main_thread_that_was_not_given_a_core_to_poll_is_not_believed(turns: Turns) -> None:
    assert turns([polling(number) for number in range(9)] + [{**ASKED, (100, 100): 14}], sleep="polls") == [None] * 10


def test_a_world_that_polls_is_asked_less_and_less_often(turns: Turns, asked_times: list[float]) -> None:
    turns([polling(30 * number) for number in range(120)])  # 36 s
    pauses = [later - earlier for earlier, later in itertools.pairwise(asked_times)]
    assert len(pauses) > 2
    assert pauses == sorted(pauses)
    assert pauses[-1] > 3 * pauses[0]


@pytest.mark.parametrize(("seen", "believed"), [("ever", True), ("timed", False), ("", False)])
def test_the_kernel_must_show_the_sleep_that_a_witness_states(
    turns: Turns, monkeypatch: pytest.MonkeyPatch, seen: str, believed: bool
) -> None:
    monkeypatch.setattr(census, "sleep_of", lambda thread: seen)
    assert (turns([AT_REST] * 4 + [ASKED], sleep="ever")[4] is not None) == believed


@pytest.mark.parametrize(("idle", "believed"), [([], False), ([301], False), ([301, 302], True)])
def test_each_child_process_must_be_idle_by_its_ranks_witness(turns: Turns, idle: list[int], believed: bool) -> None:
    answers = turns([AT_REST] * 4 + [ASKED], children=frozenset({301, 302}), idle=idle)
    assert (answers[4] is not None) == believed


def test_a_world_that_rests_for_long_is_reported_once(turns: Turns) -> None:
    rests: list[float] = []
    turns([AT_REST] * 4 + [ASKED] * 200, rests=rests)  # 60 s
    assert len(rests) == 1
    assert rests[0] >= census.LONG_REST


def test_a_time_in_which_the_controller_was_stopped_is_no_rest(turns: Turns) -> None:
    rests: list[float] = []
    turns([AT_REST] * 4 + [ASKED] * 80, rests=rests, late=3600.0)  # 25 s, and an hour
    assert rests == []
    turns([AT_REST] * 4 + [ASKED] * 200, rests=rests, late=3600.0)
    assert len(rests) == 1


def test_a_world_that_works_now_and_then_does_not_rest(turns: Turns) -> None:
    rests: list[float] = []
    turns([*([AT_REST] * 50), None, None, *([AT_REST] * 50), None, None, *([AT_REST] * 50)], rests=rests)
    assert rests == []
