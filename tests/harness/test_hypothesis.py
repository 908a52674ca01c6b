"""Hypothesis draws the same examples on all ranks, and the first one that fails ends the test."""

from __future__ import annotations

import pytest

from tests.inner import Inner, Project

SOURCE = """
    import pytest, torch
    import torch.distributed as dist
    from hypothesis import HealthCheck, assume, given, seed, settings, strategies as st
    from hypothesis.stateful import RuleBasedStateMachine, rule

    pytestmark = [pytest.mark.world(2), pytest.mark.usefixtures("process_group")]

    def note(name, example):
        with open(f"{name}-{dist.get_rank()}", "a") as file:
            file.write(f"{example}\\n")

    @settings(max_examples=20)
    @given(st.lists(st.integers(), min_size=1), st.data())
    def test_draws(values, data):
        assume(values[0] != 0)
        note("draws", (values, data.draw(st.floats())))

    @seed(3)
    @settings(max_examples=5)
    @given(st.integers())
    def test_draws_by_its_own_seed(value):
        note("seeded", value)

    @pytest.mark.parametrize("name", ["left", "right"])
    @settings(max_examples=5)
    @given(value=st.integers())
    def test_draws_for_a_parameter(name, value):
        note(name, value)

    @given(st.integers(0, 100))
    def test_fails_on_one_rank(value):
        note("fails", value)
        if dist.get_rank() == 1:
            assert value < 50
        dist.all_reduce(torch.ones(value + 1))

    @given(st.integers(0, 100))
    def test_fails_on_all_ranks(value):
        note("all", value)
        dist.all_reduce(torch.ones(value + 1))
        assert value < 50

    class Machine(RuleBasedStateMachine):
        @rule()
        def step(self): pass

    TestMachine = Machine.TestCase
"""


@pytest.fixture(scope="module")
def inner(module_project: Project) -> Inner:
    pytest.importorskip("hypothesis")
    module_project.write("test_inner.py", SOURCE)
    return module_project.run("--fresh-worlds")


def _examples(inner: Inner, name: str, rank: int) -> list[str]:
    return (inner.folder / f"{name}-{rank}").read_text().splitlines()


@pytest.mark.parametrize("name", ["draws", "seeded", "left", "right", "all"])
def test_all_ranks_draw_the_same_examples(inner: Inner, name: str) -> None:
    assert _examples(inner, name, 0) == _examples(inner, name, 1) != []


def test_the_draws_differ_from_parameter_to_parameter(inner: Inner) -> None:
    assert _examples(inner, "left", 0) != _examples(inner, "right", 0)


def test_an_example_that_fails_on_one_rank_is_its_last(inner: Inner) -> None:
    failed = [int(value) >= 50 for value in _examples(inner, "fails", 1)]
    assert failed == [False] * (len(failed) - 1) + [True]


def test_the_failing_example_is_in_the_report(inner: Inner) -> None:
    text = inner["test_fails_on_one_rank"].text
    assert "rank 1 of 2 failed first, in call" in text
    assert f"value={_examples(inner, 'fails', 1)[-1]}" in text
    assert "rank 0: waiting in all_reduce" in text


def test_an_example_that_fails_on_all_ranks_is_shown_once(inner: Inner) -> None:
    text = inner["test_fails_on_all_ranks"].text
    assert "on ranks 0,1" in text
    assert text.count("Falsifying example") == 1


def test_a_state_machine_is_refused_in_a_sentence(inner: Inner) -> None:
    assert "a state machine of Hypothesis would take other steps on each rank" in inner["runTest"].text
