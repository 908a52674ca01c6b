"""Tests that can never go on, and some beside them. ``test_deadlocks.py`` runs them and has their first lines."""

import contextlib
import queue
import threading

import everyrank
import pytest
import torch
import torch.distributed as dist

of_2, of_3 = (pytest.mark.world(size, timeout=60) for size in (2, 3))


@of_2
def test_returns(process_group, world):
    for _ in range(3):
        dist.all_reduce(torch.ones(1))
    if world.rank == 1:
        return
    dist.all_reduce(torch.ones(1))  # returns


@of_3
def test_receives(process_group, world):
    if world.rank != 1:
        dist.recv(torch.ones(1), src=1)  # receives


@of_2
def test_tags(process_group, world):
    if world.rank == 0:
        dist.recv(torch.ones(1), src=1, tag=1)  # tag 1
    dist.send(torch.ones(1), dst=0, tag=2)  # tag 2


@of_3
def test_different(process_group, world):
    dist.barrier()
    if world.rank == 2:
        dist.broadcast(torch.ones(1), src=0)  # broadcasts
    dist.all_reduce(torch.ones(1))  # reduces


@of_2
def test_shapes(process_group, world):
    dist.all_reduce(torch.ones(2 + world.rank))  # shapes


@of_3
def test_subgroup(process_group, world):
    group = dist.new_group([0, 1])
    if world.rank == 0:
        dist.all_reduce(torch.ones(1), group=group)  # subgroup


@of_2
def test_work(process_group, world):
    if world.rank == 0:
        work = dist.all_reduce(torch.ones(1), async_op=True)
        work.wait()  # work


@of_2
def test_objects(process_group, world):
    if world.rank == 0:
        dist.all_gather_object([None] * 2, "one")  # objects


@of_2
def test_ddp(process_group, world):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    for _ in range(2 - world.rank):
        model(torch.ones(2)).sum().backward()  # ddp


@of_2
def test_constructs_ddp(process_group, world):
    if world.rank == 0:
        torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))  # constructs


@of_2
def test_full_tensor(process_group, world):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    tensor = distribute_tensor(torch.ones(4), init_device_mesh("cpu", (2,)), [Shard(0)])
    if world.rank == 0:
        tensor.full_tensor()  # full tensor


@of_2
def test_clips(process_group, world):
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(torch.nn.Linear(4, 4))
    model(torch.ones(2, 4)).sum().backward()
    if world.rank == 0:
        float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0))  # clips


@of_2
def test_evaluates_under_fsdp(process_group, world):
    from torch.distributed.fsdp import fully_shard

    model = fully_shard(torch.nn.Linear(4, 4))
    if world.rank == 0:
        model(torch.ones(2, 4))  # evaluates


@of_2
def test_functional(process_group, world):
    import torch.distributed._functional_collectives as functional

    if world.rank == 0:
        reduced = functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD)
        reduced.sum()  # functional


@of_2
def test_a_tensor_parallel_forward(process_group, world):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module

    layer = parallelize_module(torch.nn.Linear(4, 2), init_device_mesh("cpu", (2,)), RowwiseParallel())
    if world.rank == 0:
        float(layer(torch.ones(3, 2)).sum())  # tensor parallel


@of_2
def test_new_group(process_group, world):
    if world.rank == 0:
        dist.new_group([0, 1])  # new group


@of_2
def test_new_group_against_a_barrier(process_group, world):
    if world.rank == 0:
        dist.new_group([0, 1])  # new group of one
    dist.barrier()  # barrier of the other


@of_3
def test_reduces_to_different_ranks(process_group, world):
    dist.reduce(torch.ones(12), dst=world.rank)  # different roots


@of_3
def test_broadcasts_from_different_ranks(process_group, world):
    dist.broadcast(torch.ones(1), src=world.rank == 2)  # different sources
    dist.barrier()  # after


@of_2
def test_sends_much(process_group, world):
    if world.rank == 0:
        dist.send(torch.ones(6_000_000), 1)  # much


@of_2
def test_a_future_that_nobody_completes(process_group, world):
    if world.rank == 0:
        torch.futures.Future().wait()  # future
    dist.barrier()  # not in the future


@of_2
def test_beside_threads(process_group, world):
    items, stop = queue.Queue(), threading.Event()
    for wait in (items.get, stop.wait):
        threading.Thread(target=wait, daemon=True).start()
    if world.rank == 0:
        dist.all_reduce(torch.ones(1))  # beside threads


@of_2
def test_crossed_groups(process_group, world):
    groups = [
        dist.new_group([0, 1]),  # first made
        dist.new_group(),  # second made
    ]
    for group in groups[:: -1 if world.rank else 1]:
        dist.all_reduce(torch.ones(1), group=group)  # crossed


@of_2
def test_waits_for_a_message(process_group, world):
    if world.rank == 0:
        works = dist.batch_isend_irecv([dist.P2POp(dist.irecv, torch.ones(1), 1)])
        for work in works:
            work.wait()  # message


@of_3
def test_opens_its_own_group(world):
    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
    if world.rank != 1:
        dist.all_reduce(torch.ones(1))  # own group


@of_2
def test_opens_two_in_turn(world):
    for turn in range(2):
        store = dist.FileStore(f"{world.folder}/{turn}", world.size)
        dist.init_process_group("gloo", store=store, rank=world.rank, world_size=world.size)
        if turn == 0:
            dist.broadcast(torch.ones(1), src=0)
            dist.destroy_process_group()
    if world.rank == 0:
        dist.broadcast(torch.ones(1), src=0)  # second group
    dist.all_reduce(torch.ones(1))  # other call


@of_3
def test_fails_before_a_barrier_in_finally(process_group, world):
    try:
        if world.rank == 1:
            raise ValueError("bad batch")  # bad batch
        dist.all_reduce(torch.ones(1))  # good batch
    finally:
        dist.barrier()  # in finally


@contextlib.contextmanager
def together():
    try:
        yield
    finally:
        dist.barrier()  # at the exit


@of_2
def test_fails_in_a_context_that_ends_with_a_barrier(process_group, world):
    with together():
        if world.rank == 1:
            {}["key"]  # no such key
        dist.all_reduce(torch.ones(1))  # with the key


@of_2
def test_reports_a_failure_to_a_rank_that_has_ended(process_group, world):
    try:
        if world.rank == 1:
            torch.ones(2).view(3)  # bad view
    except RuntimeError:
        dist.barrier()  # reports


@of_2
def test_all_fail_before_different_calls(process_group, world):
    try:
        raise OSError("no file")  # on all
    except OSError:
        if world.rank == 1:
            dist.barrier()  # barrier after it
        dist.all_reduce(torch.ones(1))  # sum after it


@of_2
def test_evaluates_on_one_rank(process_group, world):
    for epoch in range(3):
        if world.rank == 0 and epoch == 1:
            dist.all_reduce(torch.ones(2))  # evaluates on one
        dist.all_reduce(torch.ones(2))  # trains
    dist.barrier()  # after training


@of_2
def test_uneven_batches_of_workers(process_group, world):
    loader = torch.utils.data.DataLoader(torch.ones(6 - 2 * world.rank, 2), batch_size=2, num_workers=2)
    for batch in loader:
        dist.all_reduce(batch)  # uneven batches


KEPT = []


@of_2
def test_workers_of_a_rank_that_has_ended(process_group, world):
    loader = torch.utils.data.DataLoader(torch.ones(4, 2), num_workers=1, persistent_workers=True)
    KEPT.append(iter(loader))
    next(KEPT[-1])
    if world.rank == 0:
        dist.barrier()  # beside workers


@pytest.mark.world(2)
@pytest.mark.timeout(60)
def test_under_pytest_timeout(process_group, world):
    if world.rank == 1:
        dist.barrier()  # under pytest-timeout


@of_2
@pytest.mark.xfail(reason="known", raises=everyrank.WorldTimeout)
def test_expected(process_group, world):
    if world.rank == 1:
        dist.barrier()  # expected


@of_2
@pytest.mark.xfail(reason="known")
def test_not_expected(process_group, world):
    if world.rank == 1:
        dist.barrier()


@of_2
def test_good(process_group, world):
    dist.barrier()
