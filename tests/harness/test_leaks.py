"""Leaks of a test on a rank: reported by kind and rank, a failure if asked for, and never a false alarm."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.inner import Inner, Project

SOURCE = """
    import multiprocessing.shared_memory, os, pathlib, subprocess, sys, threading, time
    import pytest, torch
    import torch.distributed as dist
    import torch.distributed.rpc as rpc

    world_of_2 = pytest.mark.world(2)
    kept = []


    @world_of_2
    def test_child(world):
        if world.rank == 1:
            subprocess.Popen(["sleep", "1000"])

    @world_of_2
    def test_child_in_its_own_session(world):
        subprocess.Popen(["sleep", "1000"], start_new_session=True)

    @world_of_2
    def test_orphaned_grandchild(world):
        if world.rank == 1:
            command = "sleep 1000 > /dev/null 2>&1 & echo $! > orphan"
            subprocess.run(["sh", "-c", command], start_new_session=True, check=True)

    def test_orphan_has_ended():
        pid, until = pathlib.Path("orphan").read_text().strip(), time.monotonic() + 30
        # It may be a zombie, which has no command line.
        while (command := pathlib.Path("/proc", pid, "cmdline")).exists() and command.read_bytes():
            assert time.monotonic() < until
            time.sleep(0.01)

    @world_of_2
    def test_thread(world):
        threading.Thread(target=threading.Event().wait, name="for ever", daemon=True).start()

    @world_of_2
    def test_subgroup(process_group):
        dist.new_group([0, 1])

    @world_of_2
    def test_own_group(world):
        dist.init_process_group("gloo", init_method=world.init_method, rank=world.rank, world_size=world.size)

    @world_of_2
    def test_own_rpc_agent(world):
        options = rpc.TensorPipeRpcBackendOptions(init_method=world.init_method, _transports=["uv"])
        rpc.init_rpc(f"w{world.rank}", rank=world.rank, world_size=world.size, rpc_backend_options=options)

    @world_of_2
    def test_rref(rpc_agent, world):
        if world.rank == 0:
            kept.append(rpc.remote("worker1", torch.add, args=(torch.ones(1), 1)))
            kept[0].to_here()

    @world_of_2
    def test_descriptor(world, tmp_path):
        if world.rank == 1:
            os.open(os.fspath(tmp_path / "left open"), os.O_CREAT | os.O_RDWR)

    @world_of_2
    def test_shared_memory(world):
        if world.rank == 1:
            kept.append(multiprocessing.shared_memory.SharedMemory(create=True, size=64))
            multiprocessing.resource_tracker.unregister(kept[0]._name, "shared_memory")

    # --- no leaks

    @world_of_2
    def test_clean(process_group, tmp_path):
        total = torch.ones(4)
        dist.all_reduce(total)
        (tmp_path / "file").write_text("closed")
        subprocess.run(["true"], check=True)
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()

    @world_of_2
    def test_clean_rpc(rpc_agent, world):
        assert rpc.rpc_sync("worker0", torch.add, args=(torch.ones(1), 1)) == 2

    def name_of_this_thread():
        return threading.current_thread().name

    @world_of_2
    def test_clean_foreign_thread(rpc_agent, world):
        # A thread of the agent, which Python lists for ever.
        assert rpc.rpc_sync(f"worker{1 - world.rank}", name_of_this_thread).startswith("Dummy-")

    @world_of_2
    def test_clean_own_group(world):
        dist.init_process_group("gloo", init_method=world.init_method, rank=world.rank, world_size=world.size)
        subgroup = dist.new_group([0, 1])
        dist.barrier(subgroup)
        dist.destroy_process_group()

    @pytest.fixture(scope="module")
    def module_thread():
        stop = threading.Event()
        thread = threading.Thread(target=stop.wait, name="of the module")
        thread.start()
        yield
        stop.set()
        thread.join()

    @world_of_2
    def test_of_a_wider_fixture(module_thread, world):
        pass

    @world_of_2
    def test_first_backward(world):
        torch.ones(3, requires_grad=True).sum().backward()
        torch.rand(300, 300) @ torch.rand(300, 300)

    @world_of_2
    def test_fails_and_leaks(world):
        threading.Thread(target=threading.Event().wait, name="for ever", daemon=True).start()
        assert world.rank == 0
"""

#: test -> the report of its leak.
LEAKS = {
    "test_child": "rank 1 left a child process: pid",
    "test_child_in_its_own_session": "left a child process: pid",
    "test_thread": "ranks 0,1 left a thread: for ever",
    "test_subgroup": "ranks 0,1 left a process group: ProcessGroup '1' of 2 ranks",
    "test_own_group": "ranks 0,1 left a process group: ProcessGroup '0' of 2 ranks",
    "test_own_rpc_agent": "ranks 0,1 left an RPC agent: started at test_inner.py:48",
    "test_rref": "rank 1 left an RRef: ",
    "test_descriptor": "rank 1 left a file descriptor: ",
    "test_shared_memory": "rank 1 left shared memory: ",
}

CLEAN = [
    "test_clean",
    "test_clean_rpc",
    "test_clean_foreign_thread",
    "test_clean_own_group",
    "test_of_a_wider_fixture",
    "test_first_backward",
]


def ran(project: Project, leaks: str) -> Inner:
    project.write("test_inner.py", SOURCE)
    inner = project.run("--fresh-worlds", f"--leaks={leaks}")
    # Shared memory is meant to outlive its process, but not these tests.
    for name in re.findall(r"psm_\w+", inner.out):
        Path("/dev/shm", name).unlink(missing_ok=True)
    return inner


@pytest.fixture(scope="module")
def reporting(module_project: Project) -> Inner:
    return ran(module_project, "report")


@pytest.fixture(scope="module")
def failing(module_project: Project) -> Inner:
    return ran(module_project, "fail")


def leak_warnings(inner: Inner, test: str) -> list[str]:
    return [
        warning["text"]
        for warning in inner.warnings
        if warning["warning"] == "LeakWarning" and warning["nodeid"].endswith("::" + test)
    ]


@pytest.mark.parametrize("test", LEAKS)
def test_a_leak_is_reported_and_the_test_passes(reporting: Inner, test: str) -> None:
    assert reporting[test].outcome == "passed"
    assert any(LEAKS[test] in text for text in leak_warnings(reporting, test))
    assert LEAKS[test] in reporting[test].sections["left behind"]
    assert LEAKS[test] in reporting[test].properties["leaks"]


@pytest.mark.parametrize("test", LEAKS)
def test_a_leak_is_an_error_if_asked_for(failing: Inner, test: str) -> None:
    assert failing[test].outcome == "error"
    assert "the test left something behind" in failing[test].text
    assert LEAKS[test] in failing[test].text


@pytest.mark.parametrize("test", CLEAN)
def test_things_that_existed_before_or_are_gone_afterwards_are_no_leaks(
    reporting: Inner, failing: Inner, test: str
) -> None:
    assert leak_warnings(reporting, test) == []
    assert failing[test].outcome == "passed"


def test_an_agent_is_one_leak_with_all_that_it_holds(reporting: Inner) -> None:
    """An agent holds a hundred sockets and pipes."""
    assert len(leak_warnings(reporting, "test_own_rpc_agent")) == 1


def test_a_failure_is_not_hidden_by_a_leak(failing: Inner) -> None:
    result = failing["test_fails_and_leaks"]
    assert result.outcome == "failed"
    assert "rank 1 of 2 failed first" in result.text
    assert "ranks 0,1 left a thread: for ever" in result.sections["left behind"]


def test_an_orphan_of_a_rank_is_ended_with_its_world(reporting: Inner) -> None:
    assert reporting["test_orphaned_grandchild"].outcome == "passed"
    assert reporting["test_orphan_has_ended"].outcome == "passed"


def test_leaks_can_be_ignored(project: Project) -> None:
    project.write(
        "test_inner.py",
        """
        import threading
        import pytest

        @pytest.mark.world(2)
        def test_thread(world):
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        """,
    )
    inner = project.run("--leaks=off")
    assert inner["test_thread"].outcome == "passed"
    assert inner.warnings == []


def test_filters_of_warnings_hide_leaks_that_fit(project: Project) -> None:
    project.write(
        "test_inner.py",
        """
        import threading
        import pytest

        def leaves(name):
            threading.Thread(target=threading.Event().wait, daemon=True, name=name).start()

        @pytest.mark.filterwarnings("ignore:rank 0 left a thread. marked")
        @pytest.mark.world(1)
        def test_mark(world):
            leaves("marked")

        @pytest.mark.world(1)
        @pytest.mark.parametrize("name", ["marked", "filed"])
        def test_thread(world, name):
            leaves(name)

        @pytest.mark.world(2)
        def test_option(world):
            if world.rank == 1:
                leaves("")
        """,
    )
    project.write("pytest.ini", "[pytest]\nfilterwarnings =\n    ignore:.*filed:everyrank.LeakWarning")
    inner = project.run("-W", "ignore:rank 1 left")
    assert {test.outcome for test in inner.tests.values()} == {"passed"}
    assert [str(warning["nodeid"]).split("::")[1] for warning in inner.warnings] == ["test_thread[marked]"]
    assert inner["test_mark"].sections["left behind"] == "rank 0 left a thread: marked, started at test_inner.py:6"
