"""RPC: the fixture ``rpc_agent``, the arguments of ``@pytest.mark.rpc``, and the failures of RPC tests."""

from __future__ import annotations

import pytest

from tests.engines import one_run
from tests.inner import Inner

SOURCE = """
    import os, threading, time
    import pytest, torch
    import torch.distributed as dist
    import torch.distributed.rpc as rpc
    import everyrank.rpc
    from torch.distributed import autograd
    from torch.distributed.optim import DistributedOptimizer

    needs_faults = pytest.mark.skipif(
        bool(everyrank.rpc.faulty_agent_missing()), reason=everyrank.rpc.faulty_agent_missing() or "there is one"
    )

    def my_pid():
        return os.getpid()

    def wait_for_ever():
        threading.Event().wait()

    CALLED = threading.Event()

    def be_called():
        CALLED.set()
        threading.Event().wait(1)

    def no_tensor(number):
        return {"twice": 2 * number}

    class Shelf:
        def __init__(self, value):
            self.value = torch.full((2,), float(value), requires_grad=True)

        def times(self, other):
            return self.value * other

        def parameter(self):
            return rpc.RRef(self.value)

    # --- an agent

    @pytest.mark.world(3)
    def test_names(rpc_agent, world):
        assert rpc_agent.name == f"worker{world.rank}" == rpc.get_worker_info().name
        assert rpc_agent.names == ("worker0", "worker1", "worker2")
        assert rpc_agent.rank == world.rank == rpc.get_worker_info().id

    @pytest.mark.world(3)
    def test_calls_between_all_ranks(rpc_agent, world):
        for rank, name in enumerate(rpc_agent.names):
            assert rpc.rpc_sync(name, no_tensor, (rank,)) == {"twice": 2 * rank}
            assert (rpc.rpc_sync(name, my_pid) == os.getpid()) == (rank == world.rank)
            assert rpc.rpc_async(name, torch.add, (torch.ones(2), rank)).wait().eq(1 + rank).all()

    @pytest.mark.world(3)
    def test_references(rpc_agent, world):
        shelves = [rpc.remote(name, Shelf, (world.rank,)) for name in rpc_agent.names]
        for shelf in shelves:
            assert shelf.rpc_sync().times(2).eq(2 * world.rank).all()

    @pytest.mark.world(2)
    def test_distributed_autograd(rpc_agent, world):
        shelf = rpc.remote(rpc_agent.names[1 - world.rank], Shelf, (3,))
        parameter = shelf.rpc_sync().parameter()
        with autograd.context() as context:
            loss = shelf.rpc_sync().times(torch.ones(2)).sum()
            autograd.backward(context, [loss])
            DistributedOptimizer(torch.optim.SGD, [parameter], lr=0.5).step(context)
        assert parameter.to_here().eq(2.5).all()

    @pytest.mark.world(2)
    def test_with_a_process_group(process_group, rpc_agent, world):
        total = torch.ones(1)
        dist.all_reduce(total)
        assert rpc.rpc_sync("worker0", torch.add, (total, 1)).item() == 3

    @pytest.mark.world(2)
    def test_with_a_process_group_again(rpc_agent, process_group):
        dist.barrier()

    # --- the mark

    @pytest.mark.world(2)
    @pytest.mark.rpc(name="trainer{rank}")
    def test_other_names(rpc_agent, world):
        assert rpc_agent.names == ("trainer0", "trainer1")
        assert rpc.rpc_sync("trainer0", torch.add, (torch.ones(1), 1)).item() == 2

    @pytest.mark.world(2)
    @pytest.mark.rpc(num_worker_threads=3, rpc_timeout=7)
    def test_threads_and_timeout(rpc_agent):
        assert rpc_agent.options.num_worker_threads == 3
        assert rpc.get_rpc_timeout() == 7

    @pytest.mark.world(2)
    def test_a_call_that_outlasts_its_timeout(rpc_agent, world):
        if world.rank == 0:
            with pytest.raises(RuntimeError, match="ran for more than set timeout"):
                rpc.rpc_sync("worker1", time.sleep, (0.5,), timeout=0.05)

    @pytest.mark.world(2)
    @pytest.mark.parametrize("transports", ["uv", ["uv"], ("shm", "uv"), "all"], ids=str)
    def test_transports(request, world, transports):
        request.node.add_marker(pytest.mark.rpc(transports=transports))
        agent = request.getfixturevalue("rpc_agent")
        assert rpc.rpc_sync(agent.names[1 - world.rank], torch.add, (torch.ones(1), 1)).item() == 2

    @pytest.fixture
    def ends(monkeypatch):
        seen, shutdown = [], rpc.shutdown
        monkeypatch.setattr(rpc, "shutdown", lambda graceful: (seen.append(graceful), shutdown(graceful)))
        yield seen
        assert len(seen) == 1

    @pytest.fixture
    def ends_gracefully(ends):
        yield
        assert ends == [True]

    @pytest.fixture
    def ends_abruptly(ends):
        yield
        assert ends == [False]

    @pytest.mark.world(2)
    def test_graceful_shutdown(ends_gracefully, rpc_agent):
        pass

    @pytest.mark.world(2)
    @pytest.mark.rpc(shutdown="abrupt")
    def test_abrupt_shutdown(ends_abruptly, rpc_agent):
        pass

    @pytest.mark.rpc(num_worker_threads=3, rpc_timeout=5)
    class TestMarks:
        @pytest.mark.world(2)
        @pytest.mark.rpc(rpc_timeout=9)
        def test_the_nearest_mark_wins(self, rpc_agent):
            assert (rpc_agent.options.num_worker_threads, rpc_agent.options.rpc_timeout) == (3, 9)

    @pytest.mark.world(2)
    @pytest.mark.rpc(shutdown="gentle")
    def test_unknown_shutdown(rpc_agent):
        pass

    @pytest.mark.world(2)
    @pytest.mark.rpc(threads=3)
    def test_unknown_option(rpc_agent):
        pass

    # --- faults

    @needs_faults
    @pytest.mark.world(2)
    @pytest.mark.rpc(drop=["SCRIPT_CALL"])
    def test_dropped_message(rpc_agent, world):
        # The error's text contains the bytes of the message, which torch cannot decode.
        with pytest.raises((RuntimeError, UnicodeDecodeError)):
            rpc.rpc_sync(rpc_agent.names[1 - world.rank], torch.add, (torch.ones(1), 1))
        assert rpc.rpc_sync(rpc_agent.names[1 - world.rank], torch.add, (torch.ones(1), 1)).item() == 2

    @needs_faults
    @pytest.mark.world(2)
    @pytest.mark.rpc(drop=["RREF_USER_DELETE"])
    def test_dropped_and_sent_again(rpc_agent, world):
        if world.rank == 0:
            rpc.remote("worker1", torch.add, (torch.ones(1), 1)).to_here()

    @needs_faults
    @pytest.mark.world(2)
    @pytest.mark.rpc(delay={"SCRIPT_CALL": 1.0})
    def test_delayed_message(rpc_agent, world):
        with pytest.raises(RuntimeError, match="ran for more than set timeout"):
            rpc.rpc_sync(rpc_agent.names[1 - world.rank], torch.add, (torch.ones(1), 1), timeout=0.1)

    # --- failures

    @pytest.mark.world(3)
    def test_one_rank_fails(rpc_agent, world):
        assert world.rank != 1, "the root cause"

    @pytest.mark.world(3)
    def test_one_rank_fails_while_others_call_it(rpc_agent, world):
        if world.rank == 1:
            CALLED.wait()
            raise ValueError("the root cause")
        rpc.rpc_sync("worker1", be_called)

    @pytest.mark.world(3)
    def test_one_rank_fails_while_others_call_each_other(rpc_agent, world):
        if world.rank == 1:
            raise ValueError("the root cause")
        rpc.rpc_sync(rpc_agent.names[2 - world.rank], wait_for_ever)

    def be_called_for_ever():
        CALLED.set()
        wait_for_ever()

    @pytest.mark.world(2)
    def test_one_rank_fails_in_a_call_that_never_ends(rpc_agent, world):
        if world.rank == 1:
            rpc.rpc_async("worker0", be_called_for_ever)
        else:
            CALLED.wait()
            raise ValueError("the root cause")

    @pytest.mark.world(2)
    def test_both_ranks_are_in_calls_that_never_end(rpc_agent, world):
        rpc.rpc_async(rpc_agent.names[1 - world.rank], be_called_for_ever)
        CALLED.wait()
        assert world.rank == 1, "the root cause"

    @pytest.mark.world(2)
    def test_one_rank_passes_in_a_call_that_never_ends(rpc_agent, world):
        if world.rank == 0:
            rpc.rpc_async("worker1", be_called_for_ever)
            raise ValueError("the root cause")
        CALLED.wait()

    def remote_failure():
        raise ZeroDivisionError("on the callee")

    @pytest.mark.world(2)
    def test_remote_failure(rpc_agent, world):
        if world.rank == 0:
            rpc.rpc_sync("worker1", remote_failure)

    @pytest.mark.world(3)
    def test_one_rank_dies(rpc_agent, world):
        if world.rank == 1:
            os._exit(0)

    @pytest.mark.world(2)
    def test_one_rank_skips(rpc_agent, world):
        if world.rank == 1:
            pytest.skip("not here")

    @pytest.mark.world(2)
    def test_shuts_down_itself(rpc_agent):
        rpc.shutdown()

    @pytest.mark.world(2)
    def test_meets_while_others_end(rpc_agent, world):
        if world.rank == 1:
            world.barrier()

    @pytest.mark.world(2)
    def test_after_all(rpc_agent, world):
        assert rpc.rpc_sync(rpc_agent.names[1 - world.rank], torch.add, (torch.ones(1), 1)).item() == 2
"""

#: test -> its outcome, and texts of its report. All others pass.
RED = {
    "test_one_rank_fails": ("failed", "rank 1 of 3 failed first, in call", "the root cause", "ranks 0,2: passed"),
    **{
        f"test_one_rank_fails_while_others_{others}": (
            "failed",
            "rank 1 of 3 failed first, in call",
            "ValueError: the root cause",
        )
        for others in ("call_it", "call_each_other")
    },
    **{
        f"test_one_rank_{end}_in_a_call_that_never_ends": (
            "failed",
            "rank 0 of 2 failed first, in call",
            "ValueError: the root cause",
        )
        for end in ("fails", "passes")
    },
    "test_both_ranks_are_in_calls_that_never_end": ("failed", "rank 0 of 2 failed first, in call"),
    "test_remote_failure": (
        "failed",
        "rank 0 of 2 failed first, in call",
        "ZeroDivisionError: On WorkerInfo(id=1, name=worker1)",
        "in remote_failure",
    ),
    "test_one_rank_dies": ("failed", "rank 1 of 3 left without a record (exit code 0) in call"),
    "test_one_rank_skips": ("failed", "ranks disagree: only some of them skipped"),
    "test_meets_while_others_end": (
        "failed",
        "ranks met at different points",
        "rank 0: the end of the RPC agents",
    ),
    "test_unknown_shutdown": ("error", "the mark rpc: shutdown must be 'graceful' or 'abrupt', not 'gentle'"),
    "test_unknown_option": ("error", "the mark rpc takes no 'threads'", "num_worker_threads"),
}

FAULTS = ["test_dropped_message", "test_dropped_and_sent_again", "test_delayed_message"]

INI = """
    [pytest]
    everyrank_timeout = 100
    filterwarnings =
        error
        ignore:`torch.jit.:DeprecationWarning
"""


inner = one_run({"test_inner.py": SOURCE, "pytest.ini": INI})


def test_an_agent_behaves_like_torchs(inner: Inner) -> None:
    others = {nodeid.partition("::")[2]: test for nodeid, test in inner.tests.items()}
    red = {name: test.text for name, test in others.items() if test.outcome != "passed" and name not in FAULTS}
    assert red.keys() == RED.keys(), red
    assert len(others) == 33


@pytest.mark.parametrize("test", RED)
def test_the_report_has_the_root_cause(inner: Inner, test: str) -> None:
    inner.check(test, *RED[test])


@pytest.mark.parametrize("test", ["test_unknown_shutdown", "test_unknown_option"])
def test_a_wrong_mark_is_one_sentence(inner: Inner, test: str) -> None:
    """A traceback would show lines of everyrank, and nothing that the user has written."""
    assert "MisuseError" not in inner[test].text


@pytest.mark.parametrize("test", FAULTS)
def test_messages_are_dropped_and_delayed_if_torch_can(inner: Inner, test: str) -> None:
    result = inner[test]
    assert result.outcome in ("passed", "skipped"), result.text
    assert (result.outcome == "skipped") == ("faulty RPC agent" in result.text)


def test_no_false_alarms(inner: Inner) -> None:
    """No test has a leak, or a warning that only torch could avoid."""
    warnings = [(warning["nodeid"], warning["text"]) for warning in inner.warnings]
    # The warnings of torch's scripted optimizers bypass every filter.
    warnings = [warning for warning in warnings if "TorchScript" not in warning[1]]
    assert [warning for warning in warnings if "never_end" not in warning[0]] == []


@pytest.mark.parametrize(("end", "leaving"), [("fails", "rank 0 left when it failed:"), ("passes", "rank 1 left")])
def test_an_agent_whose_call_never_ends_is_left(inner: Inner, end: str, leaving: str) -> None:
    """torch's shutdown waits for such a call, even if the shutdown is abrupt."""
    result = inner[f"test_one_rank_{end}_in_a_call_that_never_ends"]
    assert "waiting in" not in result.text
    rank = leaving.split()[1]
    left = f"{leaving} an RPC agent: WorkerInfo(id={rank}, name=worker{rank})"
    assert result.sections["left behind"].strip() == left


def test_two_agents_whose_calls_never_end_are_both_left(inner: Inner) -> None:
    result = inner["test_both_ranks_are_in_calls_that_never_end"]
    assert "waiting in" not in result.text
    assert len(result.sections["left behind"].strip().splitlines()) == 2


def test_nothing_waits_for_a_deadline(inner: Inner) -> None:
    assert "missed its deadline" not in inner.out
