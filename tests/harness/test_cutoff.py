"""When ranks that have not finished are cut off, without a process and without a clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from everyrank.controller.cutoff import BUSY_GRACE, GRACE, START, CutOff, TimeLimit
from everyrank.controller.meeting import Meeting
from everyrank.verdict.fates import Fate
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


def look_until(end: float, due: Callable[[float], Any], times: Callable[[float], list[float]]) -> Any:
    """Look at the clock from 10.0 on whenever it is to be looked at, and last at ``end``. Return what is due then."""
    now = 10.0
    while now < end:
        due(now)
        now = min(end, *(time for time in times(now) if time > now))
    return due(end)


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
        found = first_due(lambda now: cut_off.due(waits, now), lambda now: cut_off.times(waits, now))
        assert found == (GRACE, waits)

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

        def due(now: float) -> list[Fate]:
            machine.used[1] = now
            return cut_off.due(spins, now)

        found = first_due(due, lambda now: cut_off.times(spins, now))
        assert found == (0.6, spins)  # the first look, after half of the grace, is where its count begins

    def test_all_go_together_when_the_last_has_had_its_chance(self) -> None:
        machine = Machine(3)
        cut_off = CutOff(machine.time_of)
        cut_off.note_trouble(10.0)
        left = in_phases("call", "call", "call")[1:]

        def due(now: float) -> list[Fate]:
            machine.used[2] = min(now, 10.0 + GRACE * 0.75)  # so long it runs
            return cut_off.due(left, now)

        assert first_due(due, lambda now: cut_off.times(left, now)) == (0.6, left)

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

        def due(now: float) -> list[Fate]:
            machine.used[1] = now
            return cut_off.due(spins, now)

        assert first_due(due, lambda now: cut_off.times(spins, now)) == (BUSY_GRACE, spins)

    def test_the_time_counts_from_when_the_last_rank_began(self) -> None:
        cut_off = CutOff(Machine(2).time_of)
        cut_off.note_trouble(10.0)
        imports = in_phases("call", "")[1:]
        assert cut_off.due(imports, 100.0) == []
        assert cut_off.times(imports, 100.0) == [100.0 + GRACE / 2]  # to see it begin
        cut_off = CutOff(Machine(2).time_of)
        cut_off.note_trouble(5.0)
        cut_off.began_at = 10.0
        began = in_phases("call", "call")[1:]
        found = first_due(lambda now: cut_off.due(began, now), lambda now: cut_off.times(began, now))
        assert found == (GRACE, began)

    def test_the_first_trouble_counts(self) -> None:
        cut_off = CutOff(Machine(1).time_of)
        cut_off.note_trouble(10.0)
        cut_off.note_trouble(20.0)
        assert cut_off.trouble_at == 10.0
        assert not cut_off.all_is_well

    @pytest.mark.parametrize("skips", [False, True])
    def test_a_grace_has_only_the_time_in_which_this_process_ran(self, skips: bool) -> None:
        """It was stopped, or a person debugged."""
        cut_off = CutOff(Machine(2).time_of)
        (cut_off.note_skip if skips else cut_off.note_trouble)(10.0)
        waits = in_phases("call", "call")[1:]

        def due(now: float) -> list[Fate]:
            return cut_off.due(waits, now)

        def times(now: float) -> list[float]:
            return cut_off.times(waits, now)

        assert look_until(10.0 + GRACE / 2, due, times) == []
        assert due(3610.0 + GRACE / 2) == []
        assert due(3610.0 + GRACE * 0.75) == []


class TestTimeLimit:
    @pytest.fixture
    def limit(self) -> TimeLimit:
        limit = TimeLimit(5.0, "the mark world")
        limit.order(10.0)
        return limit

    def test_it_counts_from_the_first_phase(self, limit: TimeLimit) -> None:
        assert limit.left() == float("inf")
        limit.begin(10.0)
        limit.begin(12.0)
        assert first_due(limit.missed, limit.times) == (5.0, True)
        assert limit.left() == pytest.approx(0.0)

    def test_ranks_that_never_begin_miss_the_time_for_a_start(self, limit: TimeLimit) -> None:
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
        assert not limit.missed(1e9)
        assert limit.times(100.0) == []

    def test_a_timer_of_pytest_timeout_starts_anew(self, limit: TimeLimit) -> None:
        limit.begin(6.0)
        limit.start_anew(10.0, 3.0, "pytest-timeout")
        limit.begin(2.0)
        assert first_due(limit.missed, limit.times) == (3.0, True)
        assert (limit.seconds, limit.source) == (3.0, "pytest-timeout")

    def test_it_has_only_the_time_in_which_this_process_ran(self, limit: TimeLimit) -> None:
        """It was stopped, or a person debugged: ranks may have waited for its answer."""
        limit.begin(10.0)
        assert not look_until(14.0, limit.missed, limit.times)
        assert not limit.missed(3614.0)
        assert limit.left() == pytest.approx(1.0, abs=0.11)
        assert not limit.missed(3614.0 + 0.8)

    def test_a_beginning_in_a_time_in_which_this_process_was_stopped_counts_from_its_end(
        self, limit: TimeLimit
    ) -> None:
        limit.begin(11.0)
        assert not limit.missed(3610.0)
        assert limit.left() == pytest.approx(5.0, abs=0.11)

    def test_a_beginning_is_looked_for_as_often_as_the_deadline(self, limit: TimeLimit) -> None:
        """Seen later, the time until then would be taken for one in which this process was stopped."""
        before = min(limit.times(10.0)) - 10.0
        limit.begin(10.0)
        assert before == pytest.approx(min(limit.times(10.0)) - 10.0)


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
