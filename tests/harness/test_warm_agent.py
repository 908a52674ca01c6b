"""``warm_rpc_agent``: one agent for many tests of a world, and no trace of one test in the next."""

from __future__ import annotations

from tests.engines import one_run
from tests.inner import Inner

SOURCE = """
    import os
    import pytest, torch
    import torch.distributed.rpc as rpc
    from everyrank.rank.context import current_rank
    from torch._C._distributed_rpc import _rref_context_get_debug_info
    from torch.distributed import autograd

    pytestmark = pytest.mark.world(2)
    KEPT = []

    def make():
        return torch.ones(2, requires_grad=True)

    def total(rref):
        return rref.local_value().sum()

    def owned():
        return _rref_context_get_debug_info()["num_owner_rrefs"]

    @pytest.fixture
    def noted_pid(record_property):
        record_property("pid", os.getpid())

    class TestWarm:
        def test_a_first(self, noted_pid, warm_rpc_agent, world):
            assert warm_rpc_agent.name == f"worker{world.rank}" == rpc.get_worker_info().name

        def test_b_leaves_a_cycle_that_holds_an_rref(self, noted_pid, warm_rpc_agent, world):
            if world.rank == 0:
                ring = [rpc.remote("worker1", make)]
                ring.append(ring)
                with autograd.context() as context:
                    autograd.backward(context, [rpc.rpc_sync("worker1", total, (ring[0],))])

        def test_c_after_it_nothing_is_left(self, noted_pid, warm_rpc_agent, world):
            assert owned() == "0"
            assert autograd._get_debug_info()["num_autograd_contexts"] == 0
            assert rpc.rpc_sync(f"worker{1 - world.rank}", os.getpid) != os.getpid()

        def test_d_without_an_agent(self, noted_pid, world):
            assert not rpc.api._is_current_rpc_agent_set()

        def test_cc_xfails_on_rank_0_where_it_was_to_end(self, noted_pid, warm_rpc_agent, world):
            rref = rpc.remote(f"worker{1 - world.rank}", make)
            assert rref.to_here().sum() == 2
            if world.rank == 0:
                current_rank().keep_if_xfailed()
                pytest.xfail("known")

        def test_e_keeps_an_rref(self, noted_pid, warm_rpc_agent, world):
            if world.rank == 0:
                KEPT.append(rpc.remote("worker1", make))

        def test_f_after_a_leak(self, noted_pid, warm_rpc_agent):
            assert not KEPT and owned() == "0"

        def test_g_fails_on_rank_1(self, noted_pid, warm_rpc_agent, world):
            assert world.rank == 0

        def test_h_after_a_failure(self, noted_pid, warm_rpc_agent, world):
            assert rpc.rpc_sync(f"worker{1 - world.rank}", torch.add, (1, 1)) == 2

        @pytest.mark.rpc(name="trainer{rank}")
        def test_i_other_options(self, noted_pid, warm_rpc_agent, world):
            assert warm_rpc_agent.names == ("trainer0", "trainer1")

        def test_j_shuts_the_agent_down(self, noted_pid, warm_rpc_agent):
            rpc.shutdown()

        def test_k_after_a_shutdown(self, noted_pid, warm_rpc_agent, world):
            assert rpc.rpc_sync(f"worker{1 - world.rank}", torch.add, (1, 1)) == 2

        @pytest.mark.rpc(drop=["PYTHON_CALL"])
        def test_l_faults(self, noted_pid, warm_rpc_agent):
            pass

    def test_by_request(noted_pid, request, world):
        assert request.getfixturevalue("warm_rpc_agent").rank == world.rank
    test_by_request = pytest.mark.rank_fixtures("warm_rpc_agent")(test_by_request)
"""


inner = one_run(SOURCE)


def _pid(inner: Inner, letter: str) -> object:
    (result,) = [result for nodeid, result in inner.tests.items() if f"::test_{letter}_" in nodeid]
    assert result.outcome == ("xfailed" if "_xfails_" in result.nodeid else "passed"), result.text
    return result.properties["pid"]


def test_the_agent_and_its_process_serve_the_next_test(inner: Inner) -> None:
    assert _pid(inner, "a") == _pid(inner, "b") == _pid(inner, "c") == _pid(inner, "e")


def test_an_xfail_that_is_no_reason_to_end_the_world_keeps_the_agent(inner: Inner) -> None:
    assert _pid(inner, "cc") == _pid(inner, "c") == _pid(inner, "e")


def test_a_test_without_an_agent_runs_elsewhere(inner: Inner) -> None:
    assert _pid(inner, "d") != _pid(inner, "a")


def test_an_rref_that_stays_is_a_leak_and_ends_the_world(inner: Inner) -> None:
    (leak,) = [warning["text"] for warning in inner.warnings if warning["warning"] == "LeakWarning"]
    assert leak == "rank 1 left an RRef: 1 RRef that it owns, still in use here or on another rank"
    assert _pid(inner, "f") != _pid(inner, "e")


def test_a_failure_ends_the_world(inner: Inner) -> None:
    assert inner["TestWarm::test_g_fails_on_rank_1"].outcome == "failed"
    assert _pid(inner, "h") != _pid(inner, "f")


def test_other_options_need_another_agent(inner: Inner) -> None:
    assert _pid(inner, "i") != _pid(inner, "h")


def test_an_agent_that_a_test_has_shut_down_is_not_used_again(inner: Inner) -> None:
    assert _pid(inner, "k") != _pid(inner, "j") == _pid(inner, "h")


def test_faults_are_refused(inner: Inner) -> None:
    result = inner["TestWarm::test_l_faults"]
    assert result.outcome == "error"
    assert "a warm agent takes no faults and no abrupt shutdown: ask for the fixture rpc_agent" in result.text


def test_a_fixture_that_a_test_requests_at_run_time_shares_the_world_by_a_mark(inner: Inner) -> None:
    result = inner["test_by_request"]
    assert result.outcome == "passed", result.text
    assert result.properties["pid"] == _pid(inner, "k")
