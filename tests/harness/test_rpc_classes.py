"""RPC test classes: RpcAgentTestFixture and dist_init, under torch's names, in plain and in unittest classes."""

from __future__ import annotations

import pytest

from tests.engines import one_run
from tests.inner import Inner

SOURCE = """
    import os, threading, unittest
    import pytest, torch
    import torch.distributed as dist
    import torch.distributed.rpc as rpc
    import everyrank.rpc
    from everyrank import RpcAgentTestFixture, dist_init
    from torch.distributed.rpc import api

    needs_faults = pytest.mark.skipif(
        bool(everyrank.rpc.faulty_agent_missing()), reason=everyrank.rpc.faulty_agent_missing() or "there is one"
    )

    def next_name(self):
        return f"worker{(self.rank + 1) % self.world_size}"

    def no_agent():
        return not api._is_current_rpc_agent_set()

    CALLED = threading.Event()

    def be_called_for_ever():
        CALLED.set()
        threading.Event().wait()

    class TestPlain(RpcAgentTestFixture):
        @dist_init
        def test_four_ranks(self):
            assert self.world_size == 4 == len(api._get_current_rpc_agent().get_worker_infos())
            assert rpc.get_worker_info().name == f"worker{self.rank}"
            assert rpc.get_worker_info().id == self.worker_id
            assert rpc.rpc_sync(next_name(self), torch.add, (torch.ones(1), 1)).item() == 2

    class TestSizeAsAttribute(RpcAgentTestFixture):
        world_size = 3

        @dist_init
        def test_three_ranks(self, world):
            assert world.size == 3 == len(api._get_current_rpc_agent().get_worker_infos())

        @dist_init
        @pytest.mark.parametrize("number", [1, 2])
        def test_parameters(self, number, tmp_path):
            assert rpc.rpc_sync(next_name(self), torch.add, (torch.ones(1), number)).item() == 1 + number

        def test_without_dist_init(self, world):
            assert world.size == 3
            assert no_agent()

        @dist_init(setup_rpc=False)
        def test_starts_its_own(self):
            assert no_agent()
            rpc.init_rpc(
                f"mine{self.rank}",
                backend=self.rpc_backend,
                rank=self.rank,
                world_size=self.world_size,
                rpc_backend_options=self.rpc_backend_options,
            )
            assert rpc.rpc_sync(f"mine{(self.rank + 1) % 3}", torch.add, (torch.ones(1), 1)).item() == 2
            rpc.shutdown()

        @dist_init
        def test_group_beside_the_agent(self):
            dist.init_process_group("gloo", init_method=self.file_init_method, rank=self.rank, world_size=3)
            total = torch.ones(1)
            dist.all_reduce(total)
            assert total.item() == 3
            dist.destroy_process_group()

    class TestSizeAsProperty(RpcAgentTestFixture, unittest.TestCase):
        @property
        def world_size(self):
            return 2

        def setUp(self):
            assert no_agent()
            self.was_set_up = True

        def tearDown(self):
            assert no_agent()

        @dist_init
        def test_two_ranks(self):
            self.assertTrue(self.was_set_up)
            self.assertEqual(len(api._get_current_rpc_agent().get_worker_infos()), 2)

        @dist_init
        def test_raises_on_one_rank(self):
            self.assertNotEqual(self.rank, 1)

        @dist_init
        def test_raises_in_a_call_that_never_ends(self):
            if self.rank == 1:
                rpc.rpc_sync("worker0", be_called_for_ever)
            else:
                CALLED.wait()
                self.fail("the root cause")

        @dist_init(clean_shutdown=False)
        def test_ends_abruptly(self):
            self.assertEqual(rpc.rpc_sync(f"worker{self.rank}", torch.add, (torch.ones(1), 1)).item(), 2)

        @dist_init
        def test_skips(self):
            self.skipTest("on all ranks")

        @unittest.expectedFailure
        @dist_init
        def test_expected_failure(self):
            self.assertEqual(self.rank, -1)

    class TestEndings(RpcAgentTestFixture):
        world_size = 2

        @pytest.fixture(autouse=True)
        def ended(self, request, monkeypatch):
            seen, shutdown = [], rpc.shutdown
            monkeypatch.setattr(rpc, "shutdown", lambda graceful: (seen.append(graceful), shutdown(graceful)))
            yield
            assert no_agent()
            assert seen == [request.node.name == "test_gracefully"]

        @dist_init
        def test_gracefully(self):
            pass

        @dist_init(clean_shutdown=False)
        def test_abruptly(self):
            pass

        @dist_init
        @pytest.mark.xfail(strict=True, raises=ZeroDivisionError)
        def test_when_the_method_raises(self):
            1 / 0

        @dist_init
        def test_when_the_method_skips(self):
            pytest.skip("on all ranks")

    class TestFaults(RpcAgentTestFixture):
        world_size = 2

        @needs_faults
        @dist_init(faulty_messages=["SCRIPT_CALL"])
        def test_dropped(self):
            # The error's text contains the bytes of the message, which torch cannot decode.
            with pytest.raises((RuntimeError, UnicodeDecodeError)):
                rpc.rpc_sync(next_name(self), torch.add, (torch.ones(1), 1))

        @needs_faults
        @dist_init(messages_to_delay={"SCRIPT_CALL": 1.0})
        def test_delayed(self):
            with pytest.raises(RuntimeError, match=self.get_timeout_error_regex()):
                rpc.rpc_sync(next_name(self), torch.add, (torch.ones(1), 1), timeout=0.1)

        @dist_init
        def test_none(self):
            assert rpc.rpc_sync(next_name(self), torch.add, (torch.ones(1), 1)).item() == 2

    class TestOptions(RpcAgentTestFixture):
        world_size = 2
        num_worker_threads = 3
        rpc_timeout = 9
        transports = ("shm", "uv")

        @dist_init
        def test_options_of_the_class(self):
            assert rpc.get_rpc_timeout() == 9
            assert self.rpc_backend_options.num_worker_threads == 3
            assert rpc.rpc_sync(next_name(self), torch.add, (torch.ones(1), 1)).item() == 2

        @dist_init
        def test_leaks_a_reference(self):
            if self.rank == 0:
                api.kept = rpc.remote("worker1", torch.add, (torch.ones(1), 1))
                api.kept.to_here()
"""

#: test -> its outcome
OUTCOMES = {
    "TestPlain::test_four_ranks": "passed",
    "TestSizeAsAttribute::test_three_ranks": "passed",
    "TestSizeAsAttribute::test_parameters[1]": "passed",
    "TestSizeAsAttribute::test_parameters[2]": "passed",
    "TestSizeAsAttribute::test_without_dist_init": "passed",
    "TestSizeAsAttribute::test_starts_its_own": "passed",
    "TestSizeAsAttribute::test_group_beside_the_agent": "passed",
    "TestSizeAsProperty::test_two_ranks": "passed",
    "TestSizeAsProperty::test_raises_on_one_rank": "failed",
    "TestSizeAsProperty::test_raises_in_a_call_that_never_ends": "failed",
    "TestSizeAsProperty::test_ends_abruptly": "passed",
    "TestSizeAsProperty::test_skips": "skipped",
    "TestSizeAsProperty::test_expected_failure": "xfailed",
    "TestEndings::test_gracefully": "passed",
    "TestEndings::test_abruptly": "passed",
    "TestEndings::test_when_the_method_raises": "xfailed",
    "TestEndings::test_when_the_method_skips": "skipped",
    "TestFaults::test_none": "passed",
    "TestOptions::test_options_of_the_class": "passed",
    "TestOptions::test_leaks_a_reference": "passed",
}


inner = one_run(SOURCE)


@pytest.mark.parametrize("test", OUTCOMES)
def test_a_method_has_its_outcome(inner: Inner, test: str) -> None:
    assert inner[test].outcome == OUTCOMES[test], inner[test].text


@pytest.mark.parametrize("test", ["TestFaults::test_dropped", "TestFaults::test_delayed"])
def test_faults_of_a_method_happen_if_torch_can(inner: Inner, test: str) -> None:
    result = inner[test]
    assert result.outcome in ("passed", "skipped"), result.text
    assert (result.outcome == "skipped") == ("faulty RPC agent" in result.text)


def test_a_method_that_raises_on_one_rank_is_the_root_cause(inner: Inner) -> None:
    result = inner["TestSizeAsProperty::test_raises_on_one_rank"]
    assert "rank 1 of 2 failed first, in call" in result.text
    assert "AssertionError: 1 == 1" in result.text
    assert "rank 0: passed" in result.text


def test_a_call_that_never_ends_hides_no_failure(inner: Inner) -> None:
    result = inner["TestSizeAsProperty::test_raises_in_a_call_that_never_ends"]
    assert "rank 0 of 2 failed first, in call" in result.text
    assert "AssertionError: the root cause" in result.text


def test_a_reference_that_is_left_is_a_leak(inner: Inner) -> None:
    left = inner["TestOptions::test_leaks_a_reference"].sections["left behind"]
    assert "rank 1 left an RRef: 1 RRef that it owns, still in use here or on another rank" in left


def test_no_other_leak_is_reported(inner: Inner) -> None:
    leaking = [warning["nodeid"] for warning in inner.warnings if warning["warning"] == "LeakWarning"]
    leaves = ("test_leaks_a_reference", "test_raises_in_a_call_that_never_ends")
    assert [nodeid for nodeid in leaking if not nodeid.endswith(leaves)] == []
