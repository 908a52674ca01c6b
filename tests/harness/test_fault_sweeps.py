"""``rank 1 dies at each collective``: a test runs once for each, and the points at which it fails are named."""

from __future__ import annotations

from typing import Any

import pytest
from everyrank.model.fault import COLLECTIVE, DIES, EACH, Counted, Fault, Made, Plan, PointPart
from everyrank.model.outcome import Rule
from everyrank.sweeps.sweep import sweep
from everyrank.verdict.fates import Fate, Fates
from everyrank.verdict.rules import Verdict
from everyrank.wire.messages import Record

from tests.documents import blocks
from tests.engines import elsewhere, one_run
from tests.inner import Inner, Project

SOURCE = """
    import pytest, torch
    import torch.distributed as dist

    swept = pytest.mark.faults("rank 1 dies at each collective")


    def steps(number):
        for _ in range(number):
            dist.all_reduce(torch.ones(3))

    def survive(act):
        try:
            act()
        except RuntimeError as error:
            return str(error)

    @pytest.mark.world(2)
    @swept
    def test_green(process_group, world):
        error = survive(lambda: steps(4))
        assert bool(error) == bool(world.faults)

    @pytest.mark.world(3)
    @swept
    def test_bad_at_its_last_collective(process_group, world):
        survive(lambda: steps(2))
        dist.barrier()  # which fails if the group is broken

    @pytest.mark.world(2)
    @swept
    def test_bad_at_one_line(process_group, world):
        survive(lambda: steps(2))
        if survive(lambda: steps(1)) is not None:
            assert not world.faults[0].endswith("3rd collective")

    @pytest.mark.world(2)
    @pytest.mark.faults("rank 0 gets a flipped bit from each collective")
    def test_does_not_look_at_its_second_sum(process_group):
        for step in range(3):
            total = torch.ones(3)
            dist.all_reduce(total)
            assert step == 1 or total.tolist() == [2] * 3

    @pytest.mark.world(2)
    @pytest.mark.faults("rank 0 gets a late result from each collective")
    def test_waits_at_once_but_for_its_second_sum(process_group):
        totals = [torch.ones(3), torch.ones(3)]
        dist.all_reduce(totals[0])
        work = dist.all_reduce(totals[1], async_op=True)
        dist.barrier()
        work.wait()
        assert totals[0].tolist() == totals[1].tolist() == [2] * 3

    @pytest.mark.world(2)
    @swept
    def test_bad_without_a_fault(process_group):
        steps(1)
        assert False

    @pytest.mark.world(2)
    @swept
    def test_without_a_collective(process_group):
        pass

    @pytest.mark.world(2)
    @swept
    def test_skips(process_group):
        pytest.skip("not today")

    @pytest.mark.world(2)
    def test_after_them(process_group):
        steps(1)
"""

worlds = one_run(SOURCE, launchers=["fork", elsewhere("spawn")])


def test_a_test_that_holds_at_each_point_is_green(worlds: Inner) -> None:
    worlds.check("test_green", "passed")
    assert worlds["test_green"].sections["faults"] == '"rank 1 dies at each collective": 4 runs, 0 of them red'
    worlds.check("test_after_them", "passed")


def test_the_point_at_which_a_test_fails_is_named_with_its_line(worlds: Inner) -> None:
    line = "^fails when rank 1 dies at its 3rd collective (all_reduce at test_inner.py:10)\nrank 0 of 2 failed first"
    worlds.check("test_bad_at_one_line", "failed", line)
    sections = worlds["test_bad_at_one_line"].sections
    assert sections["faults"] == '"rank 1 dies at each collective": 3 runs, 1 of them red'


def test_all_points_are_named(worlds: Inner) -> None:
    worlds.check(
        "test_bad_at_its_last_collective",
        "failed",
        "^fails when rank 1 dies at its 1st collective (all_reduce at test_inner.py:10)\n"
        "fails when rank 1 dies at its 2nd collective (all_reduce at test_inner.py:10)\n"
        "fails when rank 1 dies at its 3rd collective (barrier at test_inner.py:28)\n"
        "at the first of them:\n",
    )
    worlds.check(
        "test_does_not_look_at_its_second_sum",
        "failed",
        "^fails when rank 0 gets a flipped bit from its 1st collective (all_reduce at test_inner.py:42)\n"
        "fails when rank 0 gets a flipped bit from its 3rd collective (all_reduce at test_inner.py:42)\n",
    )


def test_points_at_which_the_fault_cannot_happen_are_counted(worlds: Inner) -> None:
    worlds.check("test_waits_at_once_but_for_its_second_sum", "passed")
    assert worlds["test_waits_at_once_but_for_its_second_sum"].sections["faults"] == (
        '"rank 0 gets a late result from each collective": 3 runs, 0 of them red, '
        "and 2 at which the fault cannot happen"
    )


@pytest.mark.parametrize(
    ("test", "outcome", "text"),
    [
        ("test_bad_without_a_fault", "failed", "^without its fault, too\non ranks 0,1"),
        ("test_without_a_collective", "failed", "^the fault did not happen: rank 1 comes to no collective"),
        ("test_skips", "skipped", "not today"),
    ],
)
def test_a_test_that_is_not_green_without_a_fault_is_not_swept(
    worlds: Inner, test: str, outcome: str, text: str
) -> None:
    worlds.check(test, outcome, text)
    assert "faults" not in worlds[test].sections


GREEN = Verdict(rule=Rule.PASSED, outcome="passed")
EACH_DEATH = Fault(0, DIES, EACH, "SIGKILL")


def ran(number: int, trouble: str = "", **more: Any) -> Fates:
    calls = [Made("all_reduce", f"model.py:{nth}") for nth in range(1, number + 1)]
    return Fates(
        [Fate(0, Record("", [], [], [], [], None, counted={COLLECTIVE: Counted(number, calls, trouble)}))], **more
    )


def test_each_point_runs_once_in_its_time_and_the_last_is_known_as_such() -> None:
    asked = []

    def again(plan: Plan, seconds: float, last: bool) -> tuple[Verdict, Fates]:
        asked.append((plan.faults[0].number, seconds, last))
        return GREEN, ran(3)

    swept = sweep(EACH_DEATH, GREEN, ran(3, seconds=2.0), again)
    assert asked == [(1, 20.0, False), (2, 20.0, False), (3, 20.0, True)]
    assert swept.verdict is GREEN


def test_a_hang_at_a_point_is_named_and_the_sweep_goes_on() -> None:
    hang = Verdict(rule=Rule.DEADLINE, headline="missed its deadline")
    swept = sweep(EACH_DEATH, GREEN, ran(3), lambda plan, *_: (hang if plan.faults[0].number == 2 else GREEN, ran(3)))
    assert swept.verdict.rule is Rule.DEADLINE
    text = "fails when rank 0 dies at its 2nd collective (all_reduce at model.py:2)\nmissed its deadline"
    assert swept.verdict.headline == text
    assert swept.remark.endswith("3 runs, 1 of them red")


def test_what_became_of_each_point_is_kept() -> None:
    hang = Verdict(rule=Rule.DEADLINE, headline="missed its deadline\nof 5 s")
    dead = Verdict(rule=Rule.LOST, headline="rank 1 was killed")
    ends = {1: (GREEN, ran(3, seconds=0.5)), 2: (hang, ran(3, seconds=5.0)), 3: (dead, ran(3))}
    swept = sweep(EACH_DEATH, GREEN, ran(3), lambda plan, *_: ends[plan.faults[0].number])
    assert swept.part is not None
    assert swept.part.fault == "rank 0 dies at each collective"
    assert swept.part.points == [
        PointPart(1, "pass", "all_reduce", "model.py:1", "", 0.5),
        PointPart(2, "timeout", "all_reduce", "model.py:2", "missed its deadline", 5.0),
        PointPart(3, "crash", "all_reduce", "model.py:3", "rank 1 was killed"),
    ]


NO_FAULT = Verdict(rule=Rule.NO_FAULT, headline="the fault did not happen: barrier gives rank 0 no tensor")


@pytest.mark.parametrize(("barriers", "rule", "red"), [({2}, Rule.PASSED, 0), ({1, 2, 3}, Rule.NO_FAULT, 0)])
def test_a_point_at_which_the_fault_cannot_happen_is_not_red(barriers: set[int], rule: Rule, red: int) -> None:
    def again(plan: Plan, *_: object) -> tuple[Verdict, Fates]:
        return (NO_FAULT, ran(3, trouble="no tensor")) if plan.faults[0].number in barriers else (GREEN, ran(3))

    swept = sweep(EACH_DEATH, GREEN, ran(3), again)
    assert swept.verdict.rule is rule
    apart = f", and {len(barriers)} at which the fault cannot happen"
    assert swept.remark == f'"rank 0 dies at each collective": 3 runs, {red} of them red{apart}'


def test_a_run_that_makes_too_few_points_is_red() -> None:
    few = Verdict(rule=Rule.NO_FAULT, headline="the fault did not happen: rank 0 made 2 collectives"), ran(2)
    swept = sweep(EACH_DEATH, GREEN, ran(3), lambda plan, *_: (GREEN, ran(3)) if plan.faults[0].number < 3 else few)
    assert swept.verdict.headline.startswith("fails when rank 0 dies at its 3rd collective")


def test_an_interrupt_ends_the_sweep() -> None:
    interrupt = Verdict(rule=Rule.INTERRUPTED, headline="SIGINT interrupted the world")
    asked = []

    def again(plan: Plan, *_: object) -> tuple[Verdict, Fates]:
        asked.append(plan)
        return interrupt, ran(3)

    assert sweep(EACH_DEATH, GREEN, ran(3), again).verdict is interrupt
    assert len(asked) == 1


def test_the_documents_loop_with_a_mistake_is_red_where_it_shows(project: Project) -> None:
    """It loads the weight of the checkpoint and not the step, and so makes a step twice."""
    loop, test = [
        block.text for block in blocks("docs/faults.md") if "elastic" in block.text and block.kind == "python"
    ]
    right, wrong = "state = torch.load(checkpoint)", "state[1:] = torch.load(checkpoint)[1:]"
    assert loop.count(right) == 1
    project.write("elastic.py", loop.replace(right, wrong))
    project.write("test_inner.py", test)
    ended = project.run()
    ended.check("test_no_step_is_lost", "failed", "Mismatched elements")
    points = [line for line in ended["test_no_step_is_lost"].text.splitlines() if line.startswith("fails when ")]
    last = "fails when rank 1 dies at its 5th collective (all_reduce at elastic.py:15)"
    assert points[-1] == last
    assert not any("its 1st collective" in point for point in points)
