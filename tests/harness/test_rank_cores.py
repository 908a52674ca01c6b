"""``--rank-cores=share``: the ranks of a worker of pytest-xdist run on the worker's share of the cores."""

from __future__ import annotations

import os

import pytest
from everyrank.resources.cores import share

from tests.engines import elsewhere
from tests.inner import Project

SOURCE = """
    import os
    import pytest

    @pytest.mark.world(2)
    @pytest.mark.parametrize("number", range(4))
    def test_on_ranks(world, number, record_property):
        record_property("cores", sorted(os.sched_getaffinity(0)))

    @pytest.mark.parametrize("number", range(4))
    def test_single(number, record_property):
        record_property("cores", sorted(os.sched_getaffinity(0)))
"""


@pytest.mark.parametrize(
    ("count", "shares"),
    [
        (1, [[0, 2, 3, 5, 7]]),
        (2, [[0, 2], [3, 5, 7]]),
        (3, [[0], [2, 3], [5, 7]]),
        (5, [[0], [2], [3], [5], [7]]),
        (7, [[0], [2], [3], [5], [7], [0], [2]]),
    ],
)
def test_workers_share_the_cores_out(count: int, shares: list[list[int]]) -> None:
    assert [share(number, count, [0, 2, 3, 5, 7]) for number in range(count)] == shares


def _cores(project: Project, *arguments: str) -> dict[str, set[tuple[int, ...]]]:
    """Return which sets of cores the tests on ranks and the single-process tests saw."""
    project.write("test_inner.py", SOURCE)
    found: dict[str, set[tuple[int, ...]]] = {"test_on_ranks": set(), "test_single": set()}
    for nodeid, result in project.run(*arguments).tests.items():
        assert result.outcome == "passed", result.text
        found[nodeid.split("::")[1].split("[")[0]].add(tuple(result.properties["cores"]))  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize("launcher", ["fork", elsewhere("spawn")])
def test_ranks_run_on_their_workers_share(project: Project, launcher: str) -> None:
    every = tuple(sorted(os.sched_getaffinity(0)))
    shares = {tuple(share(number, 2, every)) for number in range(2)}
    found = _cores(project, "-n2", "--rank-cores=share", f"--launcher={launcher}")
    assert found["test_on_ranks"]
    assert found["test_on_ranks"] <= shares
    assert found["test_single"] == {every}


def test_without_the_option_or_without_workers_ranks_run_on_all_cores(project: Project) -> None:
    every = {tuple(sorted(os.sched_getaffinity(0)))}
    assert _cores(project, "-n2") == {"test_on_ranks": every, "test_single": every}
    assert _cores(project, "--rank-cores=share") == {"test_on_ranks": every, "test_single": every}
