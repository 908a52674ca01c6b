"""Worlds in which no rank can continue end at once, with the cause.

That nobody waited for the deadline of a minute is what the text says.
"""

from __future__ import annotations

import re

import pytest

from tests.inner import Inner, Project

PREAMBLE = """
    import os, queue, threading
    from datetime import timedelta
    import pytest, torch
    import torch.distributed as dist
    import everyrank

    of_2, of_3 = (pytest.mark.world(size, timeout=60) for size in (2, 3))
"""

STUCK = f"""{PREAMBLE}
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
        for wait in (items.get, stop.wait, threading.Thread(target=stop.wait, daemon=True).join):
            threading.Thread(target=wait, daemon=True).start() if wait != items.get or world.rank else None
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
            store = dist.FileStore(f"{{world.folder}}/{{turn}}", world.size)
            dist.init_process_group("gloo", store=store, rank=world.rank, world_size=world.size)
            if turn == 0:
                dist.broadcast(torch.ones(1), src=0)
                dist.destroy_process_group()
        if world.rank == 0:
            dist.broadcast(torch.ones(1), src=0)  # second group
        dist.all_reduce(torch.ones(1))  # other call

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
"""

LIMITED = f"""{PREAMBLE}
    @of_2
    def test_a_wait_has_a_time_limit_of_its_own(process_group, world):
        if world.rank == 0:
            work = dist.all_reduce(torch.ones(1), async_op=True)
            with pytest.raises(RuntimeError, match="(?i)timeout|timed out"):
                work.wait(timedelta(seconds=3))
            os._exit(7)  # the work would never end
"""


def line(comment: str) -> int:
    return next(number for number, text in enumerate(STUCK.splitlines(), 1) if text.endswith(f"  # {comment}"))


@pytest.fixture(scope="module")
def stuck(module_project: Project) -> Inner:
    module_project.write("test_inner.py", STUCK)
    return module_project.run()


@pytest.mark.parametrize(
    ("test", "cause"),
    [
        (
            "test_returns",
            f"rank 1 ended its test without reaching this all_reduce (test_inner.py:{line('returns')})",
        ),
        (
            "test_receives",
            f"rank 1 ended its test without sending what this recv waits for (test_inner.py:{line('receives')})",
        ),
        (
            "test_different",
            f"ranks 0,1 wait in their 2nd collective, all_reduce at test_inner.py:{line('reduces')}; "
            f"rank 2 in its 2nd, broadcast at test_inner.py:{line('broadcasts')}",
        ),
        (
            "test_shapes",
            f"rank 1 waits in its 1st collective, all_reduce of (3,) Float at test_inner.py:{line('shapes')}; "
            "rank 0 ended its test, in which that was all_reduce of (2,) Float",
        ),
        (
            "test_subgroup",
            f"rank 1 ended its test without reaching this all_reduce (test_inner.py:{line('subgroup')})",
        ),
        (
            "test_opens_its_own_group",
            f"rank 1 ended its test without reaching this all_reduce (test_inner.py:{line('own group')})",
        ),
        (
            "test_opens_two_in_turn",
            f"rank 0 waits in its 1st collective, broadcast at test_inner.py:{line('second group')}; "
            f"rank 1 in its 1st, all_reduce at test_inner.py:{line('other call')}",
        ),
        (
            "test_constructs_ddp",
            f"rank 1 ended its test without reaching this DistributedDataParallel "
            f"(test_inner.py:{line('constructs')})",
        ),
        (
            "test_full_tensor",
            f"rank 1 ended its test without reaching this full_tensor (test_inner.py:{line('full tensor')})",
        ),
        (
            "test_clips",
            f"rank 1 ended its test without reaching this clip_grad_norm_ (test_inner.py:{line('clips')})",
        ),
        (
            "test_evaluates_under_fsdp",
            f"rank 1 ended its test without reaching this forward (test_inner.py:{line('evaluates')})",
        ),
        (
            "test_functional",
            f"rank 1 ended its test without reaching this sum (test_inner.py:{line('functional')})",
        ),
        (
            "test_new_group",
            f"rank 1 ended its test without reaching this new_group (test_inner.py:{line('new group')})",
        ),
        (
            "test_new_group_against_a_barrier",
            f"rank 0 waits in new_group at test_inner.py:{line('new group of one')}; "
            f"rank 1 waits in its 1st collective, barrier at test_inner.py:{line('barrier of the other')}",
        ),
        (
            "test_reduces_to_different_ranks",
            f"rank 0 waits in its 1st collective, reduce to rank 0 at test_inner.py:{line('different roots')}; "
            f"rank 1 in its 1st, reduce to rank 1 at test_inner.py:{line('different roots')}; "
            f"rank 2 in its 1st, reduce to rank 2 at test_inner.py:{line('different roots')}",
        ),
        (
            "test_broadcasts_from_different_ranks",
            f"rank 0 waits in its 1st collective, broadcast from rank 0 at "
            f"test_inner.py:{line('different sources')}; rank 1 in its 2nd, barrier at "
            f"test_inner.py:{line('after')}; rank 2 in its 1st, broadcast from rank 1 at "
            f"test_inner.py:{line('different sources')}",
        ),
        (
            "test_sends_much",
            f"rank 1 ended its test without receiving what this send offers (test_inner.py:{line('much')})",
        ),
        (
            "test_a_future_that_nobody_completes",
            f"rank 0 waits in wait at test_inner.py:{line('future')} for a future that nothing can complete; "
            f"rank 1 waits in its 1st collective, barrier at test_inner.py:{line('not in the future')}",
        ),
        (
            "test_beside_threads",
            f"rank 1 ended its test without reaching this all_reduce (test_inner.py:{line('beside threads')})",
        ),
        (
            "test_crossed_groups",
            f"rank 0 waits in its 1st collective of group 1 (ranks 0,1, made at "
            f"test_inner.py:{line('first made')}), all_reduce at test_inner.py:{line('crossed')}; rank 1 in its 1st "
            f"of group 2 (ranks 0,1, made at test_inner.py:{line('second made')}), all_reduce at "
            f"test_inner.py:{line('crossed')}",
        ),
        (
            "test_waits_for_a_message",
            f"rank 1 ended its test without sending or receiving what this wait waits for "
            f"(test_inner.py:{line('message')})",
        ),
        ("test_work", f"rank 1 ended its test without reaching this all_reduce (test_inner.py:{line('work')})"),
        (
            "test_objects",
            f"rank 1 ended its test without reaching this all_gather_object (test_inner.py:{line('objects')})",
        ),
        (
            "test_under_pytest_timeout",
            f"rank 0 ended its test without reaching this barrier (test_inner.py:{line('under pytest-timeout')})",
        ),
    ],
)
def test_a_world_that_cannot_continue_fails_with_the_cause(stuck: Inner, test: str, cause: str) -> None:
    result = stuck[test]
    assert result.outcome == "failed"
    first, second, *_ = result.text.splitlines()
    assert first == cause
    assert re.fullmatch(r"the world of \d was deadlocked: .* so the test ended before its deadline", second)
    assert "roll call" in result.text
    assert result.properties["verdict"] == "deadlock"


def test_a_batch_too_many_under_ddp_is_reported_at_the_line_where_ddp_waits(stuck: Inner) -> None:
    result = stuck["test_ddp"]
    cause = rf"rank 1 ended its test without reaching this \w+ \(test_inner.py:{line('ddp')}\)"
    assert re.fullmatch(cause, result.text.partition("\n")[0])


def test_of_broadcasts_from_different_ranks_the_odd_rank_comes_first_in_the_roll_call(stuck: Inner) -> None:
    first = stuck["test_broadcasts_from_different_ranks"].text.partition("roll call")[2].splitlines()[1]
    assert first == f"rank 2 is waiting in broadcast at test_inner.py:{line('different sources')}, for another root"


def test_it_is_expected_only_if_the_mark_names_a_timeout(stuck: Inner) -> None:
    assert stuck["test_expected"].outcome == "xfailed"
    assert stuck["test_not_expected"].outcome == "failed"
    assert stuck["test_good"].outcome == "passed"


@pytest.mark.group("clusters")
def test_in_clean_interpreters_too(project: Project) -> None:
    project.write("test_inner.py", STUCK)
    result = project.run("--launcher=spawn", "-k", "test_returns")["test_returns"]
    assert result.text.startswith("rank 1 ended its test without reaching this all_reduce")


def test_a_wait_with_its_own_time_limit_is_left_alone(project: Project) -> None:
    """Other worlds that are only slow: test_slow_but_right.py."""
    project.write("test_inner.py", LIMITED)
    result = project.run("--leaks=off")["test_a_wait_has_a_time_limit_of_its_own"]
    assert result.text.startswith("rank 0 of 2 left without a record (exit code 7) in call")


def test_a_rank_that_reuses_the_pid_of_an_earlier_rank_is_asked(project: Project) -> None:
    """In a long run the kernel reuses pids."""
    project.write(
        "test_inner.py",
        """
        import os, time
        import pytest
        from everyrank.wire import witness_pipe

        @pytest.mark.world(2)
        def test_left(world, request):
            os.mkfifo(witness_pipe.path(os.path.dirname(world.folder), os.getpid()))
            request.getfixturevalue("process_group")

        @pytest.mark.world(1, fresh=True)
        def test_first(process_group, world):
            asked = witness_pipe.path(os.path.dirname(world.folder), os.getpid())
            assert os.path.exists(asked)
            with open("earlier", "w") as file:
                file.write(asked)

        @pytest.mark.world(1, fresh=True)
        def test_second(process_group):
            with open("earlier") as file:
                earlier = file.read()
            while os.path.exists(earlier):  # this rank may have been forked before that one was gone
                time.sleep(0.01)
        """,
    )
    inner = project.run()
    assert set(inner.outcomes().values()) == {"passed"}, inner.out
