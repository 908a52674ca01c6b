"""When ranks that have not finished are cut off, without a process and without a clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from everyrank.controller.cutoff import BUSY_GRACE, GRACE, START, CutOff, TimeLimit
from everyrank.controller.meeting import Meeting
from everyrank.verdict.rules import Fate
from everyrank.wire.messages import Meet, Met


class Machine:
    """The processor time of each rank; an idle rank uses none."""

    def __init__(self, size: int) -> None:
        self.used = [0.0] * size
        self.wants = [False] * size
        self.waited = 0.0  # for a core, by all ranks together

    def time_of(self, rank: int) -> tuple[float, bool]:
        return self.used[rank], self.wants[rank]


def first_due(due: Callable[[float], Any], times: Callable[[float], list[float]]) -> tuple[float, Any]:
    """Look at the clock whenever it is to be looked at, as a watch does. Return when something is due, and what."""
    now = 10.0
    while not (found := due(now)):
        now = min(time for time in times(now) if time > now)
    return round(now - 10.0, 3), found


def in_phases(*phases: str) -> list[Fate]:
    return [Fate(rank, phase=phase) for rank, phase in enumerate(phases)]


def ranks(fates: list[Fate]) -> list[int]:
    return [fate.rank for fate in fates]


class TestCutOff:
    def test_nobody_is_cut_off_as_long_as_nothing_has_gone_wrong(self) -> None:
        cut_off = CutOff(Machine(2).time_of)
        assert cut_off.due(in_phases("call", "call"), now=1e6) == []
        assert cut_off.times(in_phases("call", "call"), now=1e6) == []

    def test_an_idle_rank_gets_the_grace_and_no_more(self) -> None:
        cut_off = CutOff(Machine(2).time_of)
        cut_off.note_trouble(10.0)
        waits = in_phases("call", "call")[1:]
        assert cut_off.due(waits, 10.0 + GRACE / 4) == []  # too early to look
        assert cut_off.due(waits, 10.0 + GRACE / 2) == []  # a first look: whether it runs is not known
        assert ranks(cut_off.due(waits, 10.0 + GRACE)) == [1]

    def test_a_rank_that_wants_to_run_is_not_idle_on_a_busy_machine(self) -> None:
        machine = Machine(2)
        machine.wants[1] = True
        cut_off = CutOff(machine.time_of)
        cut_off.note_trouble(10.0)
        waits = in_phases("call", "call")[1:]
        found = first_due(lambda now: cut_off.due(waits, now), lambda now: cut_off.times(waits, now))
        assert found == (BUSY_GRACE, waits)

    def test_the_long_grace_has_only_the_time_in_which_no_rank_waits_for_a_core(self) -> None:
        machine = Machine(2)
        cut_off = CutOff(machine.time_of, lambda: machine.waited)
        cut_off.note_trouble(10.0)
        tears_down = in_phases("call", "teardown")[1:]

        def due(now: float) -> list[Fate]:
            machine.waited = 0.9 * now
            return cut_off.due(tears_down, now)

        after, found = first_due(due, lambda now: cut_off.times(tears_down, now))
        assert found == tears_down
        assert 9 * BUSY_GRACE < after <= 10 * BUSY_GRACE

    def test_a_rank_that_spins_gets_its_grace_in_processor_time(self) -> None:
        machine = Machine(2)
        cut_off = CutOff(machine.time_of)
        cut_off.note_trouble(10.0)
        spins = in_phases("call", "call")[1:]
        seen = []
        for number in range(1, 5):
            seen.append(ranks(cut_off.due(spins, 10.0 + GRACE / 2 * number)))
            machine.used[1] += GRACE / 2
        assert seen == [[], [], [1], [1]]

    def test_all_go_together_when_the_last_has_had_its_chance(self) -> None:
        machine = Machine(3)
        cut_off = CutOff(machine.time_of)
        cut_off.note_trouble(10.0)
        left = in_phases("call", "call", "call")[1:]
        cut_off.due(left, 10.0 + GRACE / 2)
        machine.used[2] += 0.01  # it still runs
        assert cut_off.due(left, 10.0 + GRACE) == []
        assert ranks(cut_off.due(left, 10.0 + GRACE * 1.5)) == [1, 2]

    def test_a_teardown_gets_the_long_grace(self) -> None:
        cut_off = CutOff(Machine(2).time_of)
        cut_off.note_trouble(10.0)
        tears_down = in_phases("call", "teardown")[1:]
        found = first_due(lambda now: cut_off.due(tears_down, now), lambda now: cut_off.times(tears_down, now))
        assert found == (BUSY_GRACE, tears_down)

    def test_after_a_skip_a_teardown_is_left_to_the_deadline(self) -> None:
        machine = Machine(3)
        cut_off = CutOff(machine.time_of)
        cut_off.note_skip(10.0)
        machine.wants[2] = True
        left = in_phases("call", "teardown", "call")[1:]
        found = first_due(lambda now: cut_off.due(left, now), lambda now: cut_off.times(left, now))
        assert found == (BUSY_GRACE, left[1:])

    def test_after_a_skip_a_rank_that_spins_gets_the_long_grace(self) -> None:
        machine = Machine(2)
        cut_off = CutOff(machine.time_of)
        cut_off.note_skip(10.0)
        spins = in_phases("call", "call")[1:]
        for number in range(1, 6):
            assert cut_off.due(spins, 10.0 + GRACE / 2 * number) == []
            machine.used[1] += GRACE

    def test_the_time_counts_from_when_the_last_rank_began(self) -> None:
        cut_off = CutOff(Machine(2).time_of)
        cut_off.note_trouble(10.0)
        imports = in_phases("call", "")[1:]
        assert cut_off.due(imports, 100.0) == []
        assert cut_off.times(imports, 100.0) == [100.0 + GRACE / 2]  # to see it begin
        cut_off.began_at = 100.0
        began = in_phases("call", "call")[1:]
        cut_off.due(began, 100.0 + GRACE / 2)
        assert ranks(cut_off.due(began, 100.0 + GRACE)) == [1]

    def test_the_first_trouble_counts_and_a_debugger_moves_it(self) -> None:
        cut_off = CutOff(Machine(1).time_of)
        cut_off.note_trouble(10.0)
        cut_off.note_trouble(20.0)
        assert cut_off.trouble_at == 10.0
        cut_off.postpone(60.0)
        assert cut_off.trouble_at == 70.0
        assert not cut_off.all_is_well


class TestTimeLimit:
    def test_it_counts_from_the_first_phase(self) -> None:
        limit = TimeLimit(5.0, "the mark world")
        limit.order(100.0)
        assert limit.times(100.0) == [101.0, 105.0]
        assert not limit.missed(102.0)
        limit.begin(110.0)
        limit.begin(112.0)
        assert limit.times(110.0) == [115.0]
        assert not limit.missed(114.9)
        assert limit.missed(115.0)

    def test_ranks_that_never_begin_miss_the_time_for_a_start(self) -> None:
        limit = TimeLimit(5.0, "the mark world")
        limit.order(10.0)
        assert first_due(limit.missed, limit.times) == (START, True)

    def test_a_start_has_only_the_time_in_which_no_rank_waits_for_a_core(self) -> None:
        limit, waited = TimeLimit(5.0, "the mark world"), 0.0

        def missed(now: float) -> bool:
            nonlocal waited
            waited = 0.8 * now
            return limit.missed(now)

        limit.order(10.0, lambda: waited)
        after, _ = first_due(missed, limit.times)
        assert 4.9 * START < after <= 5 * START

    def test_without_a_limit_nothing_is_ever_missed(self) -> None:
        limit = TimeLimit(None, "")
        limit.order(100.0)
        limit.begin(100.0)
        limit.postpone(1.0)
        assert not limit.missed(1e9)
        assert limit.times(100.0) == []

    def test_a_timer_of_pytest_timeout_starts_anew(self) -> None:
        limit = TimeLimit(5.0, "the mark world")
        limit.order(100.0)
        limit.begin(100.0)
        limit.start_anew(104.0, 3.0, "pytest-timeout")
        limit.begin(200.0)
        assert limit.due == 107.0
        assert (limit.seconds, limit.source) == (3.0, "pytest-timeout")

    def test_a_debugger_moves_it(self) -> None:
        limit = TimeLimit(5.0, "the mark world")
        limit.order(100.0)
        limit.begin(100.0)
        limit.postpone(60.0)
        assert limit.due == 165.0


class TestMeeting:
    @pytest.fixture
    def sent(self) -> dict[int, Met]:
        return {}

    def test_all_get_what_all_brought_when_the_last_comes(self, sent: dict[int, Met]) -> None:
        meeting = Meeting(2, sent.__setitem__)
        meeting.come(1, Meet("here", "b", "two"), ended=[])
        assert meeting
        assert not sent
        meeting.come(0, Meet("here", "a", "one"), ended=[])
        assert sent == dict.fromkeys((0, 1), Met(["here", "here"], ["a", "b"], ["one", "two"], []))
        assert not meeting

    def test_a_rank_that_only_looks_leaves_the_others_waiting(self, sent: dict[int, Met]) -> None:
        meeting = Meeting(2, sent.__setitem__)
        meeting.come(0, Meet("further on", "", "text"), ended=[])
        meeting.come(1, Meet("here", "", "", looks=True), ended=[])
        assert sent == {1: Met(["further on", "here"], ["", ""], ["text", ""], [])}
        assert meeting
        meeting.come(1, Meet("further on", "", "text"), ended=[])
        assert sent == dict.fromkeys((0, 1), Met(["further on"] * 2, ["", ""], ["text", "text"], []))

    def test_ranks_that_all_look_are_released(self, sent: dict[int, Met]) -> None:
        meeting = Meeting(2, sent.__setitem__)
        meeting.come(0, Meet("here", "", "", looks=True), ended=[])
        meeting.come(1, Meet("here", "", "", looks=True), ended=[])
        assert sent == dict.fromkeys((0, 1), Met(["here", "here"], ["", ""], ["", ""], []))
        assert not meeting

    def test_who_waits_is_released_when_another_ends(self, sent: dict[int, Met]) -> None:
        meeting = Meeting(3, sent.__setitem__)
        meeting.come(1, Meet("here", "", ""), ended=[])
        meeting.dissolve(ended=[])
        assert not sent
        meeting.dissolve(ended=[2])
        assert sent == {1: Met([], [], [], [2])}

    def test_who_comes_after_another_has_ended_does_not_wait(self, sent: dict[int, Met]) -> None:
        Meeting(3, sent.__setitem__).come(0, Meet("here", "", ""), ended=[1, 2])
        assert sent == {0: Met([], [], [], [1, 2])}
