"""Blame in worlds that end badly: in the roll call at the terminal, and in the run file."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.inner import Inner, Project
from tests.run_files import RunFile, read

SOURCE = """
    import threading
    import pytest, torch
    import torch.distributed as dist


    def lazy():
        threading.Event().wait()

    @pytest.mark.world(2, timeout=3)
    def test_one_of_two_is_asleep(process_group, world):
        if world.rank == 1:
            lazy()
        dist.all_reduce(torch.ones(1))

    @pytest.mark.world(4, timeout=3)
    def test_the_last_two_are_asleep(process_group, world):
        if world.rank > 1:
            lazy()
        dist.all_reduce(torch.ones(1))

    @pytest.mark.world(4, timeout=3)
    def test_two_pairs_wait_apart(process_group, world):
        if world.rank > 1:
            dist.all_reduce(torch.ones(1))
        dist.recv(torch.ones(1), src=3)

    @pytest.mark.world(8)
    def test_one_of_eight_raises(world, process_group):
        if world.rank == 5:
            raise ValueError("no")
        if world.rank > 5:
            lazy()
        dist.all_reduce(torch.ones(1))

    @pytest.mark.world(3)
    def test_good(world):
        pass
"""


@dataclass
class Ran:
    inner: Inner
    file: RunFile


@pytest.fixture(scope="module")
def ran(module_project: Project) -> Ran:
    module_project.write("test_inner.py", SOURCE)
    inner = module_project.run("--fresh-worlds", "--run-file=run.jsonl")
    return Ran(inner, read(module_project.folder / "run.jsonl"))


@pytest.mark.parametrize(
    ("test", "blame"),
    [
        ("test_one_of_two_is_asleep", {"ranks": [1], "rule": "does not wait"}),
        ("test_the_last_two_are_asleep", {"ranks": [2, 3], "rule": "does not wait"}),
        ("test_two_pairs_wait_apart", None),
        ("test_one_of_eight_raises", {"ranks": [5], "rule": "failed first"}),
        ("test_good", None),
    ],
)
def test_the_run_file_names_the_ranks_that_the_evidence_names(ran: Ran, test: str, blame: object) -> None:
    assert ran.file[test].get("blame") == blame


@pytest.mark.parametrize(
    ("test", "first"),
    [
        ("test_one_of_two_is_asleep", "rank 1 is waiting in wait at test_inner.py:8"),
        ("test_the_last_two_are_asleep", "ranks 2,3 are waiting in wait at test_inner.py:8"),
    ],
)
def test_the_roll_call_begins_with_the_ranks_to_blame(ran: Ran, test: str, first: str) -> None:
    assert ran.inner[test].text.partition("roll call")[2].splitlines()[1] == first
    assert ran.file[test]["rollcall"][0]["ranks"] == ran.file[test]["blame"]["ranks"]
