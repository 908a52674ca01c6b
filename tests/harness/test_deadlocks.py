"""Worlds in which no rank can continue end at once, with the cause.

That nobody waited for the deadline of a minute is what the text says.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.engines import one_run
from tests.inner import Inner, Project

STUCK = (Path(__file__).parents[1] / "samples" / "deadlocks.py").read_text()

LIMITED = """
    import os
    from datetime import timedelta
    import pytest, torch
    import torch.distributed as dist

    @pytest.mark.world(2, timeout=60)
    def test_a_wait_has_a_time_limit_of_its_own(process_group, world):
        if world.rank == 0:
            work = dist.all_reduce(torch.ones(1), async_op=True)
            with pytest.raises(RuntimeError, match="(?i)timeout|timed out"):
                work.wait(timedelta(seconds=3))
            os._exit(7)  # the work would never end
"""


def line(comment: str) -> int:
    return next(number for number, text in enumerate(STUCK.splitlines(), 1) if text.endswith(f"  # {comment}"))


stuck = one_run(STUCK)


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
            "test_tags",
            f"rank 0 waits in recv from rank 1 with the tag 1 at test_inner.py:{line('tag 1')}; "
            f"rank 1 waits in send to rank 0 with the tag 2 at test_inner.py:{line('tag 2')}",
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
            "test_a_tensor_parallel_forward",
            f"rank 1 ended its test without reaching this sum (test_inner.py:{line('tensor parallel')})",
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
            "test_fails_before_a_barrier_in_finally",
            f"rank 1 waits in its 1st collective, barrier at test_inner.py:{line('in finally')}, while handling "
            f"ValueError: bad batch (:{line('bad batch')}); ranks 0,2 in their 1st, all_reduce at "
            f"test_inner.py:{line('good batch')}",
        ),
        (
            "test_fails_in_a_context_that_ends_with_a_barrier",
            f"rank 1 waits in its 1st collective, barrier at test_inner.py:{line('at the exit')}, while handling "
            f"KeyError: 'key' (:{line('no such key')}); rank 0 in its 1st, all_reduce at "
            f"test_inner.py:{line('with the key')}",
        ),
        (
            "test_reports_a_failure_to_a_rank_that_has_ended",
            f"rank 1 waits in its 1st collective, barrier at test_inner.py:{line('reports')}, while handling "
            f"RuntimeError: shape '[3]' is invalid for input of size 2 (:{line('bad view')}); rank 0 ended its test",
        ),
        (
            "test_all_fail_before_different_calls",
            f"rank 0 waits in its 1st collective, all_reduce at test_inner.py:{line('sum after it')}, while handling "
            f"OSError: no file (:{line('on all')}); rank 1 in its 1st, barrier at test_inner.py:"
            f"{line('barrier after it')}, while handling OSError: no file (:{line('on all')})",
        ),
        (
            "test_evaluates_on_one_rank",
            f"rank 0 waits in its 4th collective, all_reduce at test_inner.py:{line('trains')}; rank 1 in its 4th, "
            f"barrier at test_inner.py:{line('after training')}; already the 2nd was called from "
            f"test_inner.py:{line('evaluates on one')} on rank 0 and test_inner.py:{line('trains')} on rank 1",
        ),
        (
            "test_uneven_batches_of_workers",
            f"rank 1 ended its test without reaching this all_reduce (test_inner.py:{line('uneven batches')})",
        ),
        (
            "test_workers_of_a_rank_that_has_ended",
            f"rank 1 ended its test without reaching this barrier (test_inner.py:{line('beside workers')})",
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
        import torch.distributed as dist
        from everyrank.wire import witness_pipe

        @pytest.mark.world(2)
        def test_left(world, request):
            os.mkfifo(witness_pipe.path(os.path.dirname(world.folder), os.getpid()))
            request.getfixturevalue("process_group")
            dist.barrier()  # a group that ends as soon as it is there may fail on a rank that still connects

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
