"""All that the controller does to a rank goes through the launcher: here ranks are threads, without any process."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator

import pytest
from everyrank import patience
from everyrank.controller import ending
from everyrank.controller.conversation import Conversation, TalkOptions
from everyrank.controller.cutoff import TimeLimit
from everyrank.controller.debugger import DebugOptions
from everyrank.controller.interrupts import Interrupts
from everyrank.controller.live_world import LiveWorld
from everyrank.controller.watch import Watch
from everyrank.launch.protocol import LostLauncher, Seat, Shape
from everyrank.model.outcome import Rule
from everyrank.verdict.rules import Verdict, judge
from everyrank.wire.channel import Closed
from everyrank.wire.messages import Order

from tests.harness.in_memory import InMemory, Part

Play = Callable[..., Verdict]


class Fails(Part):
    def run(self, order: Order) -> None:
        self.file("failed", brief="ValueError: no")


class Waits(Part):
    def run(self, order: Order) -> None:
        self.wait_for_ever()


class Skips(Part):
    def run(self, order: Order) -> None:
        self.file("skipped", brief="Skipped: not here")


class Dies(Part):
    def run(self, order: Order) -> None:
        self.die(signal.SIGKILL)


class Crashes(Part):
    def run(self, order: Order) -> None:
        self.seat.dying = signal.SIGSEGV


class Meets(Part):
    def run(self, order: Order) -> None:
        met = self.meet(f"rank {self.rank}")
        self.file("failed" if met.missing else "passed", brief=f"met {met.texts}, missing {met.missing}")


class NeverCloses(Part):
    def close_up(self) -> str:
        return "did not pass the closing barrier"


class DiesLate(Part):
    def run(self, order: Order) -> None:
        super().run(order)
        self.die(3 << 8)


class DiesAtItsOrder(Part):
    def begin(self, order: Order) -> None:
        self.die(signal.SIGKILL)


class EndsBeforeItsRecord(Part):
    """Its end is noticed first; the record comes when that notice is read."""

    def run(self, order: Order) -> None:
        self.seat.end(0)
        self.seat.killed.wait()
        super().run(order)
        raise Closed


class World:
    """A world of these parts that has run one test."""

    def __init__(self, *parts: type[Part], limit: float | None = None, death_stacks: bool = False) -> None:
        self.launcher = InMemory(parts)
        self.limit = limit
        size = len(parts)
        world = LiveWorld(self.launcher, self.launcher.start(Shape(size)), ("key",), number=1)
        orders = [
            Order(
                number=7, nodeid="test_it.py::test_it", occurrence=0, index=0, next_nodeid=None, next_index=-1,
                rank=rank, size=size, backend="gloo", device="cpu", visible={}, seed=0, folder="", shared=True,
                address="", port=0, keep=False, group=False, leaks="report", debug_rank=None,
                local_rank=rank, local_size=size, host=0, hosts=1,
            )
            for rank in range(size)
        ]  # fmt: skip
        debug = DebugOptions(on_failure=False, rank=None, terminal=_no_terminal)
        options = TalkOptions(_no_line, debug, death_stacks)
        self.talk = Conversation(world, TimeLimit(limit, "the mark world"), options)
        self.interrupts = Interrupts()
        self._watch = Watch(self.talk, orders, self.interrupts)

    def run(self) -> Verdict:
        self._watch.run()
        return judge(self.talk.fates)


def _no_terminal() -> None:  # type: ignore[misc]
    raise AssertionError("nobody debugs here")


def _no_line(rank: int, line: bytes) -> None:
    raise AssertionError("nothing is printed here")


@pytest.fixture
def world() -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def make(*parts: type[Part], limit: float | None = None, death_stacks: bool = False) -> World:
        made.append(World(*parts, limit=limit, death_stacks=death_stacks))
        return made[-1]

    yield make
    for found in made:
        found.talk.world.end()
        found.launcher.close()
        found.interrupts.close()


def test_all_pass(world: Callable[..., World]) -> None:
    whole = world(Part, Part, Part)
    assert whole.run() == Verdict(rule=Rule.PASSED, outcome="passed")
    ending.leave(whole.talk)
    assert judge(whole.talk.fates).outcome == "passed"


def test_the_c_frames_of_a_rank_that_crashes_are_read_before_it_dies(world: Callable[..., World]) -> None:
    whole = world(Part, Crashes, death_stacks=True)
    verdict = whole.run()
    assert verdict.headline == "rank 1 of 2 was killed by SIGSEGV in call"
    words = whole.talk.fates.ranks[1].last_words
    assert words.endswith("C frames of the main thread, innermost first:\n  crash at rank.c:1")


def test_a_rank_that_waits_for_a_failed_one_is_asked_and_cut_off(world: Callable[..., World]) -> None:
    whole = world(Waits, Fails)
    verdict = whole.run()
    assert (verdict.rule, verdict.headline, verdict.lead) == ("failed", "rank 1 of 2 failed first, in call", 1)
    assert verdict.label == "rank 1"
    assert verdict.others == ("rank 0: in waits at test_it.py:7",)
    assert whole.launcher.asked == [0]
    assert whole.launcher.seats[0].killed.is_set()


def test_a_deadline_asks_all_that_are_late(world: Callable[..., World]) -> None:
    whole = world(Part, Waits, Waits, limit=0.05)
    verdict = whole.run()
    assert verdict.rule == "deadline"
    assert verdict.headline.endswith(
        "the world of 3 missed its deadline of 0.05 s (the mark world): ranks 1,2 had not finished"
    )
    assert whole.launcher.asked == [1, 2]


class Interrupted(Part):
    """Waits, and interrupts the run when all ranks have been asked to begin."""

    interrupts: Interrupts

    def run(self, order: Order) -> None:
        self.interrupts.come("Ctrl-C")
        self.wait_for_ever()


def test_an_interrupt_asks_all_that_are_in_the_test(world: Callable[..., World]) -> None:
    whole = world(Waits, Waits, Interrupted)
    Interrupted.interrupts = whole.interrupts
    verdict = whole.run()
    assert (verdict.rule, verdict.outcome) == ("interrupted", "failed")
    assert verdict.headline == (
        "ranks 0-2 are in waits at test_it.py:7 (interrupted)\nCtrl-C interrupted the world of 3: ranks 0-2 had not "
        "finished"
    )
    assert whole.launcher.asked == [0, 1, 2]
    assert all(seat.killed.is_set() for seat in whole.launcher.seats)


@pytest.mark.parametrize("other", [Waits, Part])
def test_a_death_names_the_rank_and_its_signal(world: Callable[..., World], other: type[Part]) -> None:
    whole = world(other, Dies)
    verdict = whole.run()
    assert (verdict.rule, verdict.headline) == ("lost", "rank 1 of 2 was killed by SIGKILL in call")
    assert whole.talk.fates.ranks[1].last_words == "the last words of seat 1"


def test_a_rank_that_ends_before_it_began_is_one_of_a_test_that_has_begun(world: Callable[..., World]) -> None:
    """Another rank may have ended it, so the test is not run again in a new world."""
    whole = world(Waits, DiesAtItsOrder)
    assert whole.run().headline == "rank 1 of 2 was killed by SIGKILL"
    assert whole.talk.fates.began


def test_a_record_that_comes_after_the_notice_of_its_ranks_end_counts(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = world(EndsBeforeItsRecord)
    events = whole.launcher.events

    def read_late() -> Iterator[Seat | LostLauncher]:
        whole.launcher.let_end()
        return events()

    monkeypatch.setattr(whole.launcher, "events", read_late)
    assert whole.run().rule == "passed"


def test_some_skip(world: Callable[..., World]) -> None:
    verdict = world(Part, Skips).run()
    assert (verdict.rule, verdict.others) == ("some skipped", ("rank 1 skipped: not here", "rank 0: passed"))


def test_ranks_meet(world: Callable[..., World]) -> None:
    assert world(Meets, Meets, Meets).run().rule == "passed"


def test_a_meeting_ends_when_a_rank_will_not_come(world: Callable[..., World]) -> None:
    verdict = world(Meets, Part).run()
    assert verdict.root is not None
    assert verdict.root.brief == "met [], missing [1]"


def test_a_lost_launcher_ends_the_test(world: Callable[..., World]) -> None:
    whole = world(Waits, Waits)
    whole.launcher.lose("was killed by SIGKILL")
    verdict = whole.run()
    assert (verdict.rule, verdict.headline) == (
        "launcher lost",
        "the launcher was killed by SIGKILL, and all ranks with it",
    )


def test_a_world_closes_up_to_be_kept(world: Callable[..., World]) -> None:
    whole = world(Part, Part)
    whole.run()
    assert ending.close_up(whole.talk)


class WaitsForCore(Part):
    """Waits for a core at the closing barrier, and gets it at the twentieth look: four looks are the whole limit."""

    def close_up(self) -> str:
        looks: list[float] = []

        def look() -> float:
            looks.append(time.monotonic())
            return looks[-1]

        self.seat.waited_for_core = look  # type: ignore[method-assign]
        while len(looks) < 20 and not self.seat.killed.wait(0.001):
            pass
        return ""


def test_a_rank_that_waits_for_a_core_is_not_late(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "IN_ORDER", 0.2)
    monkeypatch.setattr(patience, "_TIMES", 1e6)  # the machine that runs this test may be busy, too
    whole = world(Part, WaitsForCore)
    whole.run()
    assert ending.close_up(whole.talk)


def test_a_rank_that_does_not_close_up_is_named(world: Callable[..., World]) -> None:
    whole = world(Part, NeverCloses)
    whole.run()
    assert not ending.close_up(whole.talk)
    assert [fate.out_of_order for fate in whole.talk.fates.ranks] == ["", "did not pass the closing barrier"]


def test_a_rank_that_ends_after_its_record_is_no_pass(world: Callable[..., World]) -> None:
    whole = world(Part, DiesLate)
    whole.run()
    ending.leave(whole.talk)
    verdict = judge(whole.talk.fates)
    assert (verdict.rule, verdict.others) == ("disorder", ("rank 1 ended after its record: exit code 3",))
