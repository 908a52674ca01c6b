"""Survivors of a planned death that wait for each other are a deadlock, and are not left to the time limit."""

from __future__ import annotations

from typing import Any

import pytest
from everyrank.controller.deadlock import deadlock
from everyrank.controller.survivors import in_the_world
from everyrank.wire.messages import Begun, WitnessStatement

from tests.engines import elsewhere, one_run
from tests.harness.test_deadlock_table import EVER, in_p2p, waits
from tests.inner import Inner

SOURCE = """
    import time
    import pytest, torch
    import torch.distributed as dist

    faults = pytest.mark.faults


    def lose_a_peer(act):
        with pytest.raises(RuntimeError, match="[Pp]eer"):
            act()

    def total(**group):
        dist.all_reduce(torch.ones(3), **group)

    def among_survivors(world, dead):
        dist.destroy_process_group()
        left = [rank for rank in range(world.size) if rank != dead]
        file = f"file://{world.folder}/second"
        dist.init_process_group("gloo", init_method=file, rank=left.index(world.rank), world_size=len(left))

    @pytest.mark.world(3, timeout=200)
    @faults("rank 2 dies at its 2nd collective")
    def test_in_a_group_of_their_own(process_group, world):
        pair = dist.new_group([0, 1])
        total()
        lose_a_peer(total)
        if world.rank == 0:
            total(group=pair)
        else:
            dist.broadcast(torch.ones(3), 0, group=pair)

    @pytest.mark.world(3, timeout=200)
    @faults("rank 0 exits with 3 at its 1st collective")
    def test_in_a_new_default_group(world):
        file = f"file://{world.folder}/first"
        dist.init_process_group("gloo", init_method=file, rank=world.rank, world_size=world.size)
        world.barrier()
        lose_a_peer(total)
        among_survivors(world, dead=0)
        total()
        dist.recv(torch.ones(3), 0) if world.rank == 2 else total()

    @pytest.mark.world(4, timeout=200)
    @faults("rank 1 dies at each collective")
    def test_a_sweep_names_it(world):
        file = f"file://{world.folder}/first"
        dist.init_process_group("gloo", init_method=file, rank=world.rank, world_size=world.size)
        world.barrier()
        try:
            total()
            total()
        except RuntimeError:
            pass
        if world.faults:
            among_survivors(world, dead=1)
            dist.barrier() if world.rank == 3 and "2nd" in world.faults[0] else total()
        dist.destroy_process_group()

    @pytest.mark.world(3)
    @faults("rank 2 dies at its 2nd collective")
    def test_one_of_them_comes_late(process_group, world):
        pair = dist.new_group([0, 1])
        total()
        lose_a_peer(total)
        time.sleep(4 * (world.rank == 0))
        total(group=pair)

    @pytest.mark.world(3, timeout=6)
    @faults("rank 2 dies at its 1st collective")
    def test_a_wait_for_a_key_is_left_to_the_deadline(process_group, world):
        lose_a_peer(total)
        dist.FileStore(f"{world.folder}/store", 2).get("nobody sets it")
"""

worlds = one_run(SOURCE, launchers=["fork", elsewhere("spawn")])


def test_survivors_in_different_calls_of_their_group_are_deadlocked(worlds: Inner) -> None:
    worlds.check(
        "test_in_a_group_of_their_own",
        "failed",
        "^rank 0 waits in its 1st collective",
        "rank 1 in its 1st, broadcast at test_inner.py:31",
        "the world of 3 was deadlocked: ranks 0,1 could never have continued",
        "rank 2: dies at its 2nd collective, all_reduce at test_inner.py:14, as planned",
    )


def test_survivors_have_the_numbers_of_the_world_though_their_group_has_others(worlds: Inner) -> None:
    worlds.check(
        "test_in_a_new_default_group",
        "failed",
        "the world of 3 was deadlocked: ranks 1,2 could never have continued",
        "rank 2 waits in recv at test_inner.py:42",
        "rank 0: exits with 3 at its 1st collective, all_reduce at test_inner.py:14, as planned",
    )


def test_a_point_of_a_sweep_ends_by_proof(worlds: Inner) -> None:
    worlds.check(
        "test_a_sweep_names_it",
        "failed",
        "^fails when rank 1 dies at its 2nd collective (all_reduce at test_inner.py:14)\n",
        "the world of 4 was deadlocked: ranks 0,2,3 could never have continued",
    )


def test_a_survivor_that_comes_late_is_waited_for(worlds: Inner) -> None:
    worlds.check("test_one_of_them_comes_late", "passed")


def test_a_wait_that_is_not_certain_is_left_to_the_deadline(worlds: Inner) -> None:
    worlds.check("test_a_wait_for_a_key_is_left_to_the_deadline", "failed", "missed its deadline of 6 s")


# --- what is certain, on made-up statements of ranks 0 and 2: rank 1 of 3 has died ---------------------------


def cause(gone: frozenset[int] = frozenset({1}), **statements: WitnessStatement) -> str:
    found = in_the_world({int(rank[1:]): statement for rank, statement in statements.items()}, gone)
    proof = None if found is None else deadlock(found, frozenset(), EVER)
    return "" if proof is None else proof.cause


def anew(number: int, **more: Any) -> dict[str, Any]:
    """Return the fields of a rank in the survivors' group of two, as this number."""
    return {"position": (number, 2), **more}


def test_a_new_group_has_the_survivors_in_their_order() -> None:
    waiting = {"r0": waits(**anew(0)), "r2": waits("broadcast", **anew(1))}
    assert "rank 0 waits in its 5th collective" in cause(**waiting)
    assert "rank 2 in its 5th" in cause(**waiting)


def test_ranks_in_one_call_wait_for_nobody_else() -> None:
    assert cause(r0=waits(**anew(0)), r2=waits(**anew(1))) == ""


def test_a_message_is_from_a_rank_of_the_world() -> None:
    statements = {0: in_p2p("recv", 1, **anew(0)), 2: waits(root=1, **anew(1))}
    found = in_the_world(statements, frozenset({1}))
    assert found is not None
    assert (found[0].peer, found[2].root, found[2].members) == (2, 2, [0, 2])


@pytest.mark.parametrize(
    "other",
    [
        waits("broadcast", position=(2, 3), members=[0, 1, 2]),  # in the group with the dead rank
        waits("broadcast", position=(0, 2)),  # two groups, each with a rank 0
        waits("broadcast", position=(0, 1), members=[0]),
        waits("broadcast"),  # without a default group
    ],
)
def test_ranks_of_several_groups_are_not_certain(other: WitnessStatement) -> None:
    assert cause(r0=waits(**anew(0)), r2=other) == ""


def test_whoever_waits_for_a_dead_rank_may_still_lose_its_connection() -> None:
    all_of_them = {"members": [0, 1, 2]}
    assert (
        cause(r0=waits(position=(0, 3), **all_of_them), r2=waits("broadcast", position=(2, 3), **all_of_them)) == ""
    )
    begun = waits("broadcast", position=(2, 3), members=[0, 2], others=[Begun("0", 4, [0, 1, 2])])
    assert cause(r0=waits(position=(0, 3), members=[0, 2]), r2=begun) == ""


def test_a_group_of_the_survivors_beside_that_of_the_world() -> None:
    pair = {"members": [0, 2], "group": "1", "before": {"1": 0}}
    text = cause(r0=waits(position=(0, 3), **pair), r2=waits("broadcast", position=(2, 3), **pair))
    assert text.startswith("rank 0 waits in its 5th collective")
