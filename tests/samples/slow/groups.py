"""Asynchronous collectives, groups, and limits of their own."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest
import torch.distributed as dist
from slow import LONG, of_2, of_3, of_4, reduce_on_all, vector


def functional():
    import torch.distributed._functional_collectives as functional

    assert functional.all_reduce(vector(), "sum", dist.group.WORLD).sum().item() == 4


#: What all ranks come to, one of them late.
MEETINGS = {
    "a new group": lambda: reduce_on_all(dist.new_group([0, 1])),
    "a functional collective": functional,
    "a wait with a limit": lambda: dist.all_reduce(vector(), async_op=True).wait(timedelta(seconds=60)),
    "a future": lambda: dist.all_reduce(vector(), async_op=True).get_future().wait(),
    "a monitored barrier": lambda: dist.monitored_barrier(timeout=timedelta(seconds=60)),
}


@of_2
@pytest.mark.parametrize("meet", MEETINGS.values(), ids=MEETINGS)
def test_is_late_for(world, process_group, meet):
    if world.rank == 1:
        time.sleep(LONG)
    meet()


@of_2
def test_waits_long_after_it_has_begun(world, process_group):
    total = vector()
    work = dist.all_reduce(total, async_op=True)
    if world.rank == 0:
        time.sleep(LONG)
    work.wait()
    reduce_on_all()


@of_2
def test_begins_several_at_once(world, process_group):
    totals = [vector() for _ in range(4)]
    if world.rank == 1:
        time.sleep(LONG)
    with dist._coalescing_manager(async_ops=True) as coalesced:
        for total in totals:
            dist.all_reduce(total)
    if world.rank == 0:
        time.sleep(LONG)
    coalesced.wait()
    assert all(total[0] == 2 for total in totals)


@of_4
def test_works_in_rows_and_columns(world, process_group):
    rows, columns = ([dist.new_group(ranks) for ranks in pairs] for pairs in (([0, 1], [2, 3]), ([0, 2], [1, 3])))
    total = vector()
    dist.all_reduce(total, group=rows[world.rank // 2])
    if world.rank == 3:
        time.sleep(LONG)
    dist.all_reduce(total, group=columns[world.rank % 2])
    assert total[0] == 4


@of_4
def test_works_in_a_mesh(world, process_group):
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    if world.rank == 2:
        time.sleep(LONG)
    total = vector()
    for name in "ab":
        dist.all_reduce(total, group=mesh.get_group(name))
    assert total[0] == 4


@of_3
def test_others_meet_in_a_collective_while_one_waits_for_a_new_group(world, process_group):
    if world.rank == 2:
        time.sleep(LONG)
        group = dist.new_group([1, 2], use_local_synchronization=True)
    elif world.rank == 1:
        group = dist.new_group([1, 2], use_local_synchronization=True)
    if world.rank:
        reduce_on_all(group)
    reduce_on_all()


@of_3
def test_some_wait_in_a_subgroup_while_one_has_ended(world, process_group):
    group = dist.new_group([0, 1])
    if world.rank == 2:
        return
    if world.rank == 1:
        time.sleep(LONG)
    reduce_on_all(group)


@of_2
def test_a_group_has_a_time_limit_that_the_test_wants(world, process_group):
    dist.barrier()  # to open the group is under its limit too
    group = dist.new_group([0, 1], timeout=timedelta(seconds=LONG))
    if world.rank == 0:
        with pytest.raises(RuntimeError, match=r"(?i)timed out"):
            dist.all_reduce(vector(), group=group)
    else:
        time.sleep(LONG + 1)


@of_2
def test_a_monitored_barrier_has_a_time_limit_that_the_test_wants(world, process_group):
    if world.rank == 0:
        with pytest.raises(RuntimeError, match=r"(?i)timed out|failed to pass|monitored"):
            dist.monitored_barrier(timeout=timedelta(seconds=LONG))


@of_2
def test_is_late_in_a_group_of_its_own(world):
    dist.init_process_group("gloo")
    if world.rank == 0:
        time.sleep(LONG)
    reduce_on_all()
    dist.destroy_process_group()
