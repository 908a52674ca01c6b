"""The first line about a world that missed its deadline names the cause, also where stacks alone do not show it."""

from __future__ import annotations

import re

import pytest

from tests.inner import Inner, Project

SOURCE = """
import concurrent.futures
import subprocess
import threading

import pytest
import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc

late = pytest.mark.world(2, timeout=4)


@late
def test_waits_in_finally(process_group, world):
    try:
        if world.rank == 1:
            raise ValueError("bad batch")  # raises
        dist.all_reduce(torch.ones(1))  # reduces
    finally:
        world.barrier()  # in finally


@late
def test_all_wait_in_except(process_group, world):
    try:
        raise ValueError("bad batch")  # all raise
    except ValueError:
        threading.Event().wait()  # all wait


class Slow(torch.utils.data.Dataset):
    def __init__(self, slow):
        self.slow = slow

    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index == self.slow:
            threading.Event().wait()  # in the dataset
        return index


@late
def test_waits_for_a_batch(process_group, world):
    loader = torch.utils.data.DataLoader(Slow(2), num_workers=1)
    for number, batch in enumerate(loader):  # takes batches
        dist.all_reduce(batch)


@late
def test_loads_while_all_wait(process_group, world):
    if world.rank == 0:
        batches = iter(torch.utils.data.DataLoader(Slow(0), num_workers=1))
        dist.barrier()  # waits beside


@late
def test_has_a_child(process_group, world):
    if world.rank == 1:
        with subprocess.Popen(["sleep", "1000"]):
            dist.barrier()  # waits with a child


@pytest.mark.world(3, timeout=6)
def test_an_agent_does_not_come(world):
    if world.rank == 2:
        rpc.api._all_gather = lambda *_, **__: threading.Event().wait()  # does not come
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"file://{world.folder}/agents", _transports=["uv"], _channels=["basic"]
    )
    rpc.init_rpc(f"worker{world.rank}", rank=world.rank, world_size=3, rpc_backend_options=options)  # agents


@late
def test_waits_for_a_key(process_group, world):
    store = dist.distributed_c10d._get_default_store()
    keys = ["never", "ready"]
    if world.rank == 0:
        store.wait(keys)  # waits for keys


@late
def test_gets_a_key(process_group, world):
    if world.rank == 0:
        dist.distributed_c10d._get_default_store().get("never")  # gets
    dist.barrier()  # while the other gets


@late
def test_waits_for_a_lock(process_group, world):
    lock, is_held = threading.Lock(), threading.Event()

    def reduce():
        with lock:
            is_held.set()
            dist.all_reduce(torch.ones(1))  # holds the lock

    if world.rank == 0:
        threading.Thread(target=reduce).start()
        is_held.wait()
        with lock:  # wants the lock
            dist.barrier()


@late
def test_threads_with_crossed_groups(process_group, world):
    groups = [
        dist.new_group([0, 1]),  # first group
        dist.new_group([0, 1]),  # second group
    ]

    def reduce():
        dist.all_reduce(torch.ones(1), group=groups[world.rank])  # crossed

    thread = threading.Thread(target=reduce)
    thread.start()
    thread.join()  # joins


@late
def test_waits_for_a_pool(process_group, world):
    if world.rank == 0:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(dist.all_reduce, torch.ones(1)).result()  # pool
"""


def line(comment: str) -> int:
    return next(number for number, text in enumerate(SOURCE.splitlines(), 1) if text.endswith(f"  # {comment}"))


@pytest.fixture(scope="module")
def late(module_project: Project) -> Inner:
    (module_project.folder / "test_inner.py").write_text(SOURCE)
    return module_project.run()


def test_the_exception_that_a_rank_is_handling(late: Inner) -> None:
    assert late["test_waits_in_finally"].text.startswith(
        f"rank 1 waits in barrier at test_inner.py:{line('in finally')}, while handling ValueError: bad batch "
        f"(:{line('raises')}); rank 0 waits in all_reduce at test_inner.py:{line('reduces')} (deadline 4 s)\n"
    )


def test_an_exception_that_all_ranks_are_handling_blames_none(late: Inner) -> None:
    assert late["test_all_wait_in_except"].text.startswith(
        f"ranks 0,1 wait in wait at test_inner.py:{line('all wait')}, while handling ValueError: bad batch "
        f"(:{line('all raise')}) (deadline 4 s)\n"
    )


def test_a_rank_that_waits_for_a_batch_and_what_its_worker_does(late: Inner) -> None:
    text = late["test_waits_for_a_batch"].text
    assert text.startswith(
        f"ranks 0,1 wait for the next batch of loader at test_inner.py:{line('takes batches')}, "
        f"whose worker is waiting in wait at test_inner.py:{line('in the dataset')} (deadline 4 s)\n"
    )
    worker = r"  DataLoader worker \d+ of rank 1 is waiting in wait at .*\n    wait at thr.*\n    wait at thr.*\n"
    assert re.search(rf"{worker}    __getitem__ at test_inner.py:{line('in the dataset')}\n", text)
    assert "not ended before" not in text


@pytest.mark.parametrize(
    ("test", "rank", "child", "comment"),
    [
        ("test_loads_while_all_wait", 0, "DataLoader worker", "waits beside"),
        ("test_has_a_child", 1, "process sleep", "waits with a child"),
    ],
)
def test_a_child_process_that_may_act_is_named_as_the_reason_why_a_world_went_on(
    late: Inner, test: str, rank: int, child: str, comment: str
) -> None:
    first, _, third, *_ = late[test].text.splitlines()
    waits = f"rank {rank} waits in barrier at test_inner.py:{line(comment)}"
    assert first == f"rank {1 - rank} ended its test; {waits} (deadline 4 s)"
    assert re.fullmatch(
        rf"It was not ended before, since a child process may let a rank go on: rank {rank} has {child} \d+", third
    )
    assert re.search(rf"^  {child} \d+ of rank {rank} is ", late[test].text, re.M)


def test_the_worker_that_init_rpc_waits_for(late: Inner) -> None:
    agents = f"at test_inner.py:{line('agents')}"
    first = late["test_an_agent_does_not_come"].text.partition("\n")[0]
    assert f"rank 0 waits in init_rpc (as the leader, for worker2, which has not come) {agents}; " in first
    assert f"rank 1 waits in init_rpc (for the answer of the leader worker0) {agents}" in first


def test_the_keys_of_a_store(late: Inner) -> None:
    assert late["test_waits_for_a_key"].text.startswith(
        "rank 1 ended its test; rank 0 waits in wait for the keys 'never', 'ready' of a store at "
        f"test_inner.py:{line('waits for keys')} (deadline 4 s)\n"
    )
    assert late["test_gets_a_key"].text.startswith(
        f"rank 0 waits in get for the key 'never' of a store at test_inner.py:{line('gets')}; "
        f"rank 1 waits in barrier at test_inner.py:{line('while the other gets')} (deadline 4 s)\n"
    )


def test_a_lock_that_a_thread_in_a_collective_holds(late: Inner) -> None:
    assert late["test_waits_for_a_lock"].text.startswith(
        f"rank 1 ended its test; rank 0 waits in acquire of a lock at test_inner.py:{line('wants the lock')}, "
        f"with a thread in all_reduce at test_inner.py:{line('holds the lock')} (deadline 4 s)\n"
    )


def test_threads_that_wait_in_groups_in_opposite_order(late: Inner) -> None:
    first, second = (
        f"rank {rank} waits in join at test_inner.py:{line('joins')}, with a thread in all_reduce of group "
        f"{rank + 1} (made at test_inner.py:{line(made)}) at test_inner.py:{line('crossed')}"
        for rank, made in enumerate(("first group", "second group"))
    )
    assert late["test_threads_with_crossed_groups"].text.startswith(f"{first}; {second} (deadline 4 s)\n")


def test_a_pools_thread_in_a_collective(late: Inner) -> None:
    assert late["test_waits_for_a_pool"].text.startswith(
        f"rank 1 ended its test; rank 0 waits in result at test_inner.py:{line('pool')}, with a thread in all_reduce "
    )
