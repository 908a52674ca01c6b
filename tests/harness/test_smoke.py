"""The smallest run: a world starts, reduces, and is judged."""

from __future__ import annotations

import pytest

from tests.inner import Inner, Project


@pytest.fixture(scope="module")
def inner(module_project: Project) -> Inner:
    module_project.write(
        "test_inner.py",
        """
        import os
        import pytest, torch, torch.distributed as dist

        @pytest.mark.world(4)
        def test_all_reduce(process_group):
            t = torch.full((3,), float(dist.get_rank()))
            dist.all_reduce(t)
            assert t.eq(6).all()

        @pytest.mark.world(3)
        def test_one_rank_fails(process_group, world):
            assert world.rank != 1
            dist.barrier()
        """,
    )
    return module_project.run()


def test_a_test_passes_on_all_ranks(inner: Inner) -> None:
    assert inner["test_all_reduce"].outcome == "passed"


def test_a_failure_on_one_rank_fails_the_test(inner: Inner) -> None:
    result = inner["test_one_rank_fails"]
    assert result.outcome == "failed"
    assert "rank 1 of 3 failed first, in call" in result.text
    assert "ranks 0,2: waiting in barrier at test_inner.py" in result.text


def test_the_run_is_red(inner: Inner) -> None:
    assert inner.code == 1
