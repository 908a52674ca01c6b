"""A rank that gloo aborts, since another rank's tensor has another size: who called what, and no blame."""

from __future__ import annotations

import signal

import pytest
from everyrank.verdict.fates import Fate, Fates, blamed
from everyrank.verdict.mismatch import mismatch_text
from everyrank.verdict.rules import judge
from everyrank.wire.messages import Collective, Phase, Record

from tests.inner import Project

WORDS = "what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 10 vs 6."
ECHO = "RuntimeError: [/src/gloo/pair.cc:534] Connection closed by peer [127.0.0.1]:4711"


def lost_its_peer(rank: int, size: int) -> Fate:
    collective = Collective("0", 1, "all_gather", f"({size},) Float")
    return Fate(rank, Record("", [Phase("call", "failed", {}, 1.0, ECHO, collective=collective)], [], [], [], None))


def test_the_other_ranks_state_what_they_called_and_nobody_is_blamed() -> None:
    aborted = Fate(2, status=int(signal.SIGABRT), ended_at=1.0, phase="call", last_words=WORDS)
    fates = Fates([lost_its_peer(0, 3), lost_its_peer(1, 5), aborted])
    assert judge(fates).headline.splitlines() == [
        "data of another size than expected came to rank 2 (10 bytes, not 6); "
        "rank 0 last called all_gather with (3,) Float; rank 1 last called all_gather with (5,) Float",
        "rank 2 of 3 was killed by SIGABRT in call",
    ]
    assert blamed(fates).ranks == ()


@pytest.mark.parametrize(
    ("function", "size"),
    [
        ("all_reduce", "a piece of 10 bytes, not 6"),
        ("all_gather", "a piece of 10 bytes, not 6"),
        ("broadcast", "10 bytes, not 6"),
    ],
)
def test_the_bytes_of_what_gloo_cuts_are_those_of_a_piece(function: str, size: str) -> None:
    stack = f'\nCurrent thread 0x1 (most recent call first):\n  File "/torch/c10d.py", line 3 in {function}\n'
    assert f" ({size})\n" in mismatch_text(WORDS + stack, 0, {})


ABORTED = """
    import pytest, torch
    import torch.distributed as dist

    of_2 = pytest.mark.world(2)

    @of_2
    def test_shapes(process_group, world):
        dist.all_reduce(torch.ones(2 + 100 * world.rank))  # shapes

    @of_2
    def test_dtypes(process_group, world):
        dist.all_reduce(torch.ones(2, dtype=(torch.double, torch.float)[world.rank]))  # dtypes that abort

    @of_2
    def test_a_longer_broadcast(process_group, world):
        dist.broadcast(torch.ones(3 - world.rank), src=0)  # longer

    @of_2
    def test_a_longer_message(process_group, world):
        dist.all_reduce(torch.ones(4))
        if world.rank == 0:
            dist.send(torch.ones(3), 1)
        else:
            dist.recv(torch.ones(2), 0)  # message
"""


def test_lines_and_sizes_of_a_real_mismatch_are_in_the_first_line(project: Project) -> None:
    project.write("test_inner.py", ABORTED)
    inner = project.run()
    came = "data of another size than expected came to rank"
    location = {
        comment: f"test_inner.py:{line(comment)}" for comment in ("shapes", "dtypes that abort", "longer", "message")
    }
    assert {name: inner[name].text.partition("\n")[0] for name in inner.outcomes()} == {
        "test_shapes": f"{came} 0 in all_reduce at {location['shapes']} (a piece of 104 bytes, not 4); "
        f"rank 1 last called all_reduce with (102,) Float at {location['shapes']}",
        "test_dtypes": f"{came} 1 in all_reduce at {location['dtypes that abort']} (a piece of 8 bytes, not 4); "
        "rank 0 last called all_reduce with (2,) Double",
        "test_a_longer_broadcast": f"{came} 1 in broadcast at {location['longer']} (12 bytes, not 8); "
        f"rank 0 last called broadcast with (3,) Float at {location['longer']}",
        "test_a_longer_message": f"{came} 1 in recv at {location['message']} (12 bytes, not 8)",
    }
    assert inner["test_shapes"].text.splitlines()[1] == "rank 0 of 2 was killed by SIGABRT in call"


UNEQUAL = """
    import pytest, torch
    import torch.distributed as dist

    of_2 = pytest.mark.world(2)

    @of_2
    def test_all_to_all_single(process_group, world):
        gives = [[2, 2], [2, 2]][world.rank]
        takes = [[2, 2], [3, 2]][world.rank]
        dist.all_to_all_single(torch.zeros(sum(takes), 4), torch.ones(4, 4), takes, gives)  # all to all

    @of_2
    def test_broadcast(process_group, world):
        dist.broadcast(torch.zeros(2 + world.rank), src=0)  # broadcast

    @of_2
    def test_broadcast_of_dtypes(process_group, world):
        dist.broadcast(torch.zeros(2, dtype=(torch.float, torch.double)[world.rank]), src=0)  # dtypes

    @of_2
    def test_scatter(process_group, world):
        given = [torch.ones(2), torch.ones(2)] if world.rank == 0 else None
        dist.scatter(torch.zeros(2 + world.rank), given, src=0)  # scatter

    @of_2
    def test_gather(process_group, world):
        taken = [torch.ones(2), torch.ones(2)] if world.rank == 0 else None
        dist.gather(torch.zeros(2 - world.rank), taken, dst=0)  # gather

    @pytest.mark.world(3)
    def test_after_messages_in_a_group_of_its_own(world):
        dist.init_process_group("gloo")
        if world.rank == 0:
            dist.send(torch.ones(1), 1)
        if world.rank == 1:
            dist.recv(torch.ones(1), 0)
        pair = dist.new_group([0, 2])
        dist.broadcast(torch.zeros(1), src=1)
        if world.rank != 1:
            dist.broadcast(torch.zeros(1 + world.rank), src=0, group=pair)  # pair
"""

EQUAL = """
    import pytest, torch
    import torch.distributed as dist
    import torch.distributed._functional_collectives as functional

    @pytest.mark.world(2)
    def test_equal(process_group, world):
        rank = world.rank
        gives = [[1, 3], [2, 0]][rank]
        takes = [[1, 2], [3, 0]][rank]
        dist.all_to_all_single(torch.zeros(3), torch.ones(sum(gives)), takes, gives)
        dist.all_to_all_single(torch.zeros(4, 2), torch.ones(4, 2))
        dist.broadcast(torch.zeros((2, 3) if rank else (3, 2)), src=0)
        dist.broadcast(torch.zeros(2, dtype=(torch.float, torch.int32)[rank]), src=0)
        dist.broadcast_object_list([rank], src=0)
        dist.gather_object("x" * rank, [None, None] if rank == 0 else None)
        dist.scatter(torch.zeros(2), [torch.ones(2)] * 2 if rank == 0 else None)
        dist.send(torch.zeros(1), 1) if rank == 0 else dist.recv(torch.zeros(5), 0)
        if rank == 0:
            dist.broadcast(torch.zeros(1), src=0)
            functional.broadcast(torch.zeros(2), 0, dist.group.WORLD)
        else:
            functional.broadcast(torch.zeros(1), 0, dist.group.WORLD)
            dist.broadcast(torch.zeros(2), src=0)

    @pytest.mark.world(4)
    def test_two_default_groups(world):
        rank, half = world.rank % 2, world.rank // 2
        store = dist.FileStore(f"{world.folder}/{half}", 2)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
        dist.broadcast(torch.zeros(1 + half), src=0)

    @pytest.mark.xfail(reason="known", strict=False)
    @pytest.mark.world(2)
    def test_expected(process_group, world):
        dist.broadcast(torch.zeros(1 + world.rank), src=0)
"""


def line(comment: str) -> int:
    lines = [*enumerate(UNEQUAL.splitlines(), 1), *enumerate(ABORTED.splitlines(), 1)]
    return next(number for number, text in lines if text.endswith(f"  # {comment}"))


def test_sizes_that_gloo_accepts_though_they_differ_are_a_failure(project: Project) -> None:
    project.write("test_inner.py", UNEQUAL)
    inner = project.run()
    first = {name: inner[name].text.partition("\n")[0] for name in inner.outcomes()}
    assert first == {
        "test_all_to_all_single": f"rank 1 takes 3 rows from rank 0 in all_to_all_single at "
        f"test_inner.py:{line('all to all')}, and rank 0 gives it 2",
        "test_broadcast": f"the sizes of broadcast at test_inner.py:{line('broadcast')} differ: "
        "rank 0 has (2,) Float; rank 1 has (3,) Float",
        "test_broadcast_of_dtypes": f"the sizes of broadcast at test_inner.py:{line('dtypes')} differ: "
        "rank 0 has (2,) Float; rank 1 has (2,) Double",
        "test_scatter": f"the sizes of scatter at test_inner.py:{line('scatter')} differ: "
        "rank 0 has (2,) Float; rank 1 has (3,) Float",
        "test_gather": f"the sizes of gather at test_inner.py:{line('gather')} differ: "
        "rank 0 has (2,) Float; rank 1 has (1,) Float",
        "test_after_messages_in_a_group_of_its_own": f"the sizes of broadcast at test_inner.py:{line('pair')} "
        "differ: rank 0 has (1,) Float; rank 2 has (3,) Float",
    }
    assert set(inner.outcomes().values()) == {"failed"}
    assert inner["test_broadcast"].properties["verdict"] == "unequal sizes"


def test_sizes_that_fit_are_no_failure(project: Project) -> None:
    project.write("test_inner.py", EQUAL)
    assert project.run().outcomes() == {
        "test_equal": "passed",
        "test_two_default_groups": "passed",
        "test_expected": "xpassed",
    }
