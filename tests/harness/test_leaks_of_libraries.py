"""Things that libraries keep for a test are no leak, or one leak: helpers of multiprocessing, groups, agents."""

from __future__ import annotations

import os
import re

import pytest
from everyrank.leaks import libraries

from tests.engines import one_run
from tests.inner import Inner, Project

SOURCE = """
    import ctypes, multiprocessing, os, time
    import pytest, torch
    import torch.distributed as dist
    import torch.distributed.rpc as rpc
    from torch.utils.data import DataLoader, TensorDataset

    import jobs  # the code for other processes, without torch

    alone = pytest.mark.world(1)
    world_of_2 = pytest.mark.world(2)
    numbers = TensorDataset(torch.ones(8, 2))
    kept = []

    # --- no leaks

    @alone
    @pytest.mark.parametrize("method", ["fork", "forkserver"])  # a worker that is spawned imports torch
    def test_loader(world, method):
        assert len(list(DataLoader(numbers, num_workers=1, multiprocessing_context=method))) == 8

    @alone
    def test_loader_left_in_the_midst(world):
        next(iter(DataLoader(numbers, num_workers=2)))

    @alone
    def test_persistent_workers_that_went_with_their_loader(world):
        loader = DataLoader(numbers, num_workers=2, persistent_workers=True)
        assert len(list(loader)) == len(list(loader)) == 8

    @alone
    def test_mp_spawn(world):
        torch.multiprocessing.spawn(jobs.nothing, nprocs=1)

    @alone
    @pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
    def test_queue(world, method):
        context = multiprocessing.get_context(method)
        queue = context.Queue()
        process = context.Process(target=jobs.put, args=(queue,))
        process.start()
        assert queue.get() == 1
        process.join()

    @alone
    def test_queue_with_a_feeder_thread(world):
        queue = multiprocessing.get_context("spawn").Queue()
        queue.put(1)
        assert queue.get() == 1

    @alone
    @pytest.mark.parametrize("method", ["spawn", "forkserver"])
    def test_pool(world, method):
        with multiprocessing.get_context(method).Pool(1) as pool:
            pool.map(jobs.nothing, [1, 2])

    @alone
    def test_manager(world):
        with multiprocessing.get_context("spawn").Manager() as manager:
            manager.list([1])

    @alone
    def test_tensor_that_another_process_opens(world):
        # The first such tensor starts a thread that serves descriptors as long as the process lives.
        context = torch.multiprocessing.get_context("spawn")
        here, there = context.SimpleQueue(), context.SimpleQueue()
        process = context.Process(target=jobs.forward, args=(here, there))
        process.start()
        here.put(torch.ones(3))
        assert there.get() == 3.0
        process.join()

    # --- leaks

    @world_of_2
    def test_leaves_workers(world):
        loader = DataLoader(numbers, num_workers=2, persistent_workers=True)  # workers
        list(loader)
        kept.append(loader)

    @alone
    def test_leaves_a_worker_of_the_fork_server(world):
        loader = DataLoader(numbers, num_workers=1, persistent_workers=True, multiprocessing_context="forkserver")
        list(loader)
        kept.append(loader)

    @world_of_2
    def test_leaves_a_queue(world):
        kept.append(multiprocessing.get_context("spawn").Queue())  # queue

    @alone
    def test_names_its_semaphore(world, record_property):
        lock = multiprocessing.get_context("spawn").Lock()
        name = "sem." + lock._semlock.name.strip("/")
        record_property("semaphore", name)
        assert os.path.exists("/dev/shm/" + name)
        kept.append(lock)

    @world_of_2
    def test_leaves_a_process(world):
        process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(1000,), daemon=True)
        process.start()
        kept.append(process)

    @world_of_2
    def test_leaves_a_group(world):
        opened = {"rank": world.rank, "world_size": world.size}
        dist.init_process_group("gloo", init_method=world.init_method, **opened)  # group
        dist.barrier()

    @world_of_2
    def test_leaves_a_group_and_its_store(world):
        store = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False) if world.rank == 0 else None
        text = repr((store.host, store.port)) if store is not None else ""
        host, port = eval(world._meet("store", "", text).texts[0])
        store = store or dist.TCPStore(host, port, 2)
        dist.init_process_group("gloo", store=store, rank=world.rank, world_size=world.size)  # over TCP
        dist.barrier()

    @world_of_2
    def test_leaves_a_subgroup(process_group):
        dist.barrier(dist.new_group([0, 1]))  # subgroup

    @world_of_2
    def test_leaves_many_subgroups(process_group):
        for _ in range(6):
            dist.new_group([0, 1])  # subgroups

    @world_of_2
    def test_leaves_a_group_and_a_pipe(world):
        dist.init_process_group("gloo", init_method=world.init_method, rank=world.rank, world_size=world.size)
        os.pipe()  # pipe

    @world_of_2
    def test_store(world):
        dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    @world_of_2
    def test_leaves_a_pipe_of_another_library(world):
        dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        ctypes.CDLL(None).pipe((ctypes.c_int * 2)())

    @world_of_2
    def test_leaves_an_agent(world):
        options = rpc.TensorPipeRpcBackendOptions(init_method=world.init_method)
        rpc.init_rpc(f"w{world.rank}", rank=world.rank, world_size=world.size, rpc_backend_options=options)  # agent
        assert rpc.rpc_sync(f"w{1 - world.rank}", torch.add, args=(torch.ones(1), 1)) == 2
"""
JOBS = """
    def put(queue):
        queue.put(1)

    def forward(source, target):
        target.put(source.get().sum().item())

    def nothing(rank):
        pass
"""

#: What leaves something behind; all other tests of the file leave nothing.
LEAVE = re.compile(r"test_leaves_|test_names_its_semaphore")


def line(comment: str) -> int:
    return next(number for number, text in enumerate(SOURCE.splitlines(), 1) if text.endswith(f"# {comment}"))


#: test -> the whole report of its leaks, line by line; ``...`` stands for parts that differ from run to run.
WHOLE = {
    "test_leaves_a_group": [
        f"ranks 0,1 left a process group: ProcessGroup '0' of 2 ranks, made at test_inner.py:{line('group')}"
    ],
    "test_leaves_a_group_and_its_store": [
        f"ranks 0,1 left a process group: ProcessGroup '0' of 2 ranks, made at test_inner.py:{line('over TCP')}"
    ],
    "test_leaves_a_subgroup": [
        f"ranks 0,1 left a process group: ProcessGroup '1' of 2 ranks, made at test_inner.py:{line('subgroup')}"
    ],
    "test_leaves_many_subgroups": [
        f"ranks 0,1 left 6 process groups each: of 2 ranks, made at test_inner.py:{line('subgroups')}"
    ],
    "test_leaves_a_pipe_of_another_library": ["ranks 0,1 left 2 file descriptors each: pipe"],
    "test_leaves_an_agent": [f"ranks 0,1 left an RPC agent: started at test_inner.py:{line('agent')}"],
}


ran = one_run({"jobs.py": JOBS, "test_inner.py": SOURCE})


def test_things_that_live_as_long_as_the_process_are_no_leaks(ran: Inner) -> None:
    assert {name: ran[name].text for name, outcome in ran.outcomes().items() if outcome != "passed"} == {}
    clean = {name: ran[name].sections for name in ran.outcomes() if not LEAVE.match(name)}
    assert {name: sections for name, sections in clean.items() if "left behind" in sections} == {}
    assert len(clean) == 14


def test_a_process_has_one_lock_of_signals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "_lock_of_signals", "")
    first, later = ({str(fd): f"pipe:[{fd // 2}]" for fd in (start, start + 1)} for start in (6, 8))
    assert libraries.lock_of_signals({"5": "socket:[1]", **first, **later}) == {"6", "7"}
    assert libraries.lock_of_signals(later) == set()


@pytest.mark.parametrize("temp", ["temp", "a-folder-whose-name-is-long" * 4])
def test_helpers_of_multiprocessing_end_no_warm_world(project: Project, temp: str) -> None:
    """Also if the paths of sockets would be too long in the folder for temporary files."""
    project.temp = project.folder / temp
    project.temp.mkdir(exist_ok=True)
    project.write(
        "test_inner.py",
        """
        import multiprocessing, os, pathlib
        import pytest, torch
        from torch.utils.data import DataLoader, TensorDataset

        def pids(world):
            return world._meet("pids", "", str(os.getpid())).texts

        seen = []

        @pytest.mark.world(2)
        def test_before(world):
            list(DataLoader(TensorDataset(torch.ones(4, 2)), num_workers=1))
            multiprocessing.get_context("spawn").Lock()
            child = multiprocessing.get_context("forkserver").Process(target=int)
            child.start()
            child.join()
            if world.rank == 0:
                open("sockets", "w").write(multiprocessing.util.get_temp_dir())
            seen.extend(pids(world))

        @pytest.mark.world(2)
        def test_after(world):
            assert pids(world) == seen
        """,
    )
    inner = project.run("--no-run-alone")
    assert inner.outcomes() == {"test_before": "passed", "test_after": "passed"}, inner.out
    sockets = (project.folder / "sockets").read_text()
    assert sockets.endswith(("/mp", ".mp"))
    assert not os.path.exists(sockets)


@pytest.mark.parametrize("test", WHOLE)
def test_a_group_or_an_agent_is_one_leak_with_all_that_it_holds(ran: Inner, test: str) -> None:
    assert ran[test].sections["left behind"].splitlines() == WHOLE[test]


def test_other_leaks_beside_a_group_are_reported(ran: Inner) -> None:
    text = ran["test_leaves_a_group_and_a_pipe"].sections["left behind"]
    assert f"ranks 0,1 left 2 file descriptors each: pipe, opened at test_inner.py:{line('pipe')}" in text
    assert len(text.splitlines()) == 2


def test_workers_that_are_kept_are_leaks(ran: Inner) -> None:
    text = ran["test_leaves_workers"].sections["left behind"]
    location = f"started at test_inner.py:{line('workers') + 1}"
    assert len(re.findall(rf"rank [01] left a child process: pid .*, {location}", text)) == 4, text
    assert "pipe" in text


def test_workers_of_the_fork_server_that_are_kept_are_leaks(ran: Inner) -> None:
    text = ran["test_leaves_a_worker_of_the_fork_server"].sections["left behind"]
    assert len(re.findall(r"rank 0 left a child process: pid", text)) == 1, text


def test_a_queue_that_is_kept_is_a_leak(ran: Inner) -> None:
    text = ran["test_leaves_a_queue"].sections["left behind"]
    assert f"ranks 0,1 left 2 file descriptors each: pipe, opened at test_inner.py:{line('queue')}" in text
    assert "ranks 0,1 left 3 pieces of shared memory each: a semaphore of multiprocessing" in text


def test_a_process_of_multiprocessing_that_is_kept_is_a_leak(ran: Inner) -> None:
    text = ran["test_leaves_a_process"].sections["left behind"]
    assert len(re.findall(r"rank [01] left a child process: pid .*spawn_main", text)) == 2, text
    assert "resource_tracker" not in text


def test_files_that_multiprocessing_named_are_removed_with_the_run(ran: Inner) -> None:
    """Python removes these if a process ends normally; a rank is killed, or ends by ``os._exit``."""
    assert not list((ran.folder / "tmp").glob("pymp-*"))
    assert ran["test_names_its_semaphore"].properties["semaphore"] not in os.listdir("/dev/shm")


def test_a_thread_that_ends_while_it_is_examined_is_no_leak(project: Project) -> None:
    project.write(
        "test_inner.py",
        """
        import threading
        import pytest
        from everyrank.leaks import snapshot

        @pytest.mark.world(1, fresh=True)
        def test_thread(world):
            go, look = threading.Event(), snapshot._task
            thread = threading.Thread(target=go.wait)
            thread.start()

            def after_its_end(key):
                go.set()
                thread.join()
                return look(key)

            snapshot._task = after_its_end
        """,
    )
    inner = project.run("--leaks=fail")
    assert inner.outcomes() == {"test_thread": "passed"}, inner.out
