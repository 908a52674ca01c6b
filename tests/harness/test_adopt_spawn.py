"""Under ``--adopt``, a function that a test spawns by torch.multiprocessing runs on everyrank's ranks."""

from __future__ import annotations

from tests.engines import one_run
from tests.inner import Inner

SOURCE = """
    import os, time
    import pytest, torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
    from torch.multiprocessing import spawn

    WORLD = 3

    def adds(rank, path, size):
        dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=size)
        total = torch.tensor([float(rank)])
        dist.all_reduce(total)
        (path.parent / f"sum-{rank}").write_text(str(total.item()))

    def notes(rank, path):
        (path / f"note-{rank}").write_text(f"{os.environ['OF_THE_TEST']} {torch.rand(1).item()} {os.getpid()}")

    def fails(rank, size):
        assert rank != 1

    def hangs(rank, path, size):
        dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=size)
        dist.recv(torch.ones(1), src=0) if rank == 1 else dist.barrier()

    def leaves(rank, path, size):
        dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=size)
        connected = path.parent / "connected"
        if rank == 0:
            connected.touch()
            dist.all_reduce(torch.ones(1))  # leaves
        while not connected.exists():  # a rank may leave while another one still connects to it: another line
            time.sleep(0.01)

    def dies(rank):
        if rank == 1:
            os._exit(0)

    def puts(rank, queue):
        queue.put(rank)

    def test_adds(tmp_path):
        with open("runs", "a") as file:
            file.write(".")
        mp.spawn(adds, args=(tmp_path / "store", WORLD), nprocs=WORLD)
        assert [(tmp_path / f"sum-{rank}").read_text() for rank in range(WORLD)] == ["3.0"] * 3

    @pytest.mark.parametrize("size", [2, 3])
    def test_adds_twice(tmp_path, size):
        for name in ("left", "right"):
            spawn(adds, args=(tmp_path / name, size), nprocs=size, join=True)

    def test_sees_what_a_process_sees(tmp_path, monkeypatch):
        size = 2
        monkeypatch.setenv("OF_THE_TEST", "yes")
        torch.multiprocessing.spawn(notes, (tmp_path,), size)
        left, right = [(tmp_path / f"note-{rank}").read_text().split() for rank in range(2)]
        assert left[:2] == right[:2]
        assert left[2] != right[2]

    def test_fails_on_one_rank():
        mp.spawn(fails, args=(2,), nprocs=2)

    @pytest.mark.timeout(60)
    def test_hangs(tmp_path):
        mp.spawn(hangs, args=(tmp_path / "store", 2), nprocs=2)

    def test_leaves_early(tmp_path):
        mp.spawn(leaves, args=(tmp_path / "store", 2), nprocs=2)

    def test_loses_a_rank():
        mp.spawn(dies, nprocs=2)

    def test_needs_a_queue():
        queue = mp.get_context("spawn").SimpleQueue()
        mp.spawn(puts, args=(queue,), nprocs=1)
        assert queue.get() == 0

    def test_has_as_many_as_there_are_cores():
        mp.spawn(fails, args=(2,), nprocs=os.cpu_count() and 1)
"""


inner = one_run(SOURCE, "--adopt")


def test_a_function_that_works_passes(inner: Inner) -> None:
    outcomes = inner.outcomes()
    passed = {name for name, outcome in outcomes.items() if outcome == "passed"}
    assert passed == {
        "test_adds",
        "test_adds_twice[2]",
        "test_adds_twice[3]",
        "test_sees_what_a_process_sees",
        "test_needs_a_queue",
        "test_has_as_many_as_there_are_cores",
    }


def test_a_rank_that_fails_is_named_with_its_own_traceback(inner: Inner) -> None:
    text = inner["test_fails_on_one_rank"].text
    assert "rank 1 of 2 failed first, in call" in text
    assert ">   " in text
    assert "assert rank != 1" in text
    assert "ProcessRaisedException" not in text


def test_a_hang_has_a_roll_call(inner: Inner) -> None:
    assert "rank 0 is waiting in barrier" in inner["test_hangs"].text


def test_a_rank_that_leaves_early_is_named_first(inner: Inner) -> None:
    line = next(number for number, text in enumerate(SOURCE.splitlines(), 1) if text.endswith("# leaves"))
    first, second, *_ = inner["test_leaves_early"].text.splitlines()
    assert first == (
        f"rank 1 ended its test, or destroyed its group, before rank 0 had what it waits for at test_inner.py:{line}"
    )
    assert second == "rank 0 of 2 failed first, in call"


def test_a_rank_that_leaves_with_code_0_is_lost(inner: Inner) -> None:
    assert "rank 1 of 2 left without a record (exit code 0)" in inner["test_loses_a_rank"].text


def test_only_what_is_spawned_runs_on_all_ranks(inner: Inner) -> None:
    assert (inner.folder / "runs").read_text() == "."


def test_the_run_reports_what_it_adopted(inner: Inner) -> None:
    assert "adopted 0 tests of torch's classes and 9 that call mp.spawn, left 1 as they are" in inner.out


def test_nothing_is_left_behind(inner: Inner) -> None:
    assert [warning for warning in inner.warnings if warning["warning"] == "LeakWarning"] == []
