"""The further test cases of everyrank.testcase, with groups around tests and agents; and its helpers."""

from __future__ import annotations

from tests.engines import one_run
from tests.inner import Inner

SOURCE = """
    import os, unittest
    import pytest, torch
    import torch.distributed as dist
    import torch.distributed.rpc as rpc
    import torch.distributed.fsdp, torch.distributed.tensor  # here once, or in each rank that a case makes anew
    from everyrank.testcase import *
    from everyrank.rpc.agents import faulty_agent_missing
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec

    class Started(MultiProcessTestCase):
        @property
        def world_size(self):
            return 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()

    class Sharded(ShardedTensorTestBase):
        @property
        def world_size(self):
            return 2

        @with_comms(init_rpc=False, backend="gloo")
        def test_group(self):
            self.assertEqual(dist.get_world_size(), 2)

        @with_comms(backend="gloo")
        def test_group_and_agents(self):
            self.assertEqual(rpc.rpc_sync(worker_name(1 - self.rank), torch.add, (1, 1)), 2)

        @with_comms
        def test_needs_gpus(self):
            self.assertEqual(dist.get_backend(), "nccl")

        @with_comms(backend="gloo")
        def test_shards(self):
            spec = ChunkShardingSpec(dim=0, placements=["rank:0/cpu", "rank:1/cpu"])
            first, second = (sharded_tensor.ones(spec, 4, 2, init_rrefs=True) for _ in range(2))
            self.assert_sharded_tensor_equal(first, second)
            second.local_shards()[0].tensor.add_(1)
            with self.assertRaises(AssertionError):
                self.assert_sharded_tensor_equal(first, second)

    class OnMesh(DTensorTestBase):
        @property
        def world_size(self):
            return 2

        @with_comms(backend="gloo")
        def test_mesh(self):
            self.init_manual_seed_for_rank()
            self.assertEqual(torch.initial_seed(), self.rank)
            seen = []
            self.run_subtests({"a": [1, 2], "b": [3]}, lambda a, b: seen.append((a, b)))
            self.assertEqual(seen, [(1, 3), (2, 3)])

    class OnMeshContinuous(DTensorContinuousTestBase):
        world_size = 2

        def test_mesh(self):
            self.assertEqual(self.build_device_mesh().size(), 2)

    class Sharding(FSDPTest):
        def test_group(self):
            self.assertEqual(self.process_group.size(), self.world_size)

    @pytest.mark.skipif(bool(faulty_agent_missing()), reason="no faulty agent")
    class Faulty(FaultyRpcAgentTestFixture, Started):
        @dist_init
        def test_default_messages(self):
            self.assertEqual(self.rpc_backend_options.num_fail_sends, 3)
            self.assertEqual(self.rpc_backend_options.messages_to_fail, retryable_message_types)

        @dist_init(messages_to_delay={"SCRIPT_CALL": 1.5})
        def test_delayed(self):
            with self.assertRaisesRegex(RuntimeError, self.get_timeout_error_regex()):
                rpc.rpc_sync(worker_name((self.rank + 1) % 4), torch.add, (torch.ones(1), 1), timeout=0.2)

    class References(RpcAgentTestFixture, Started):
        @dist_init
        def test_owners_and_forks(self):
            if self.rank == 0:
                kept = rpc.remote("worker1", torch.add, (torch.ones(1), 1))
                self.assertEqual(kept.to_here(), [2.0])
                wait_until_pending_futures_and_users_flushed()
                wait_until_owners_and_forks_on_rank(1, 1, rank=1)
                del kept
                wait_until_owners_and_forks_on_rank(0, 0, rank=1)
                with self.assertRaisesRegex(ValueError, "rank 1 has 0 owners and 0 forks"):
                    wait_until_owners_and_forks_on_rank(2, 2, rank=1, timeout=0)

    class Helpers(DistributedTestBase):
        @property
        def world_size(self):
            return 2

        def test_group(self):
            self.create_pg("cpu")
            self.assertEqual(dist.get_backend(), self.backend("cpu"))
            dist.barrier()  # gloo fails on a rank that still connects while another destroys the group already

        @with_temp_dir
        def test_folder_of_one_rank(self):
            self.assertTrue(os.path.isdir(self.temp_dir))

        def test_folder_of_all_ranks(self):
            self.create_pg("cpu")
            folders = [None, None]
            @with_temp_dir
            def look(self):
                dist.all_gather_object(folders, self.temp_dir)
                self.assertTrue(os.path.isdir(self.temp_dir))
                dist.barrier()
            look(self)
            self.assertEqual(folders[0], folders[1])

        def test_tcp_store(self):
            store = create_tcp_store()
            store.set("a", "b")
            self.assertEqual(store.get("a"), b"b")

        @requires_nccl_version((99, 0), "nobody has it")
        def test_needs_another_nccl(self):
            self.fail("nobody has it")

        @skip_if_small_worldsize
        def test_needs_a_large_world(self):
            self.fail("2 are not 8")

        @skip_if_odd_worldsize
        def test_even(self):
            self.assertEqual(self.world_size % 2, 0)

        @slowTest
        def test_slow(self):
            self.fail("nobody has asked for it")
"""

#: test -> its outcome on a machine without GPUs
OUTCOMES = {
    "Sharded::test_group": "passed",
    "Sharded::test_group_and_agents": "passed",
    "Sharded::test_needs_gpus": "skipped",
    "Sharded::test_shards": "passed",
    "OnMesh::test_mesh": "passed",
    "OnMeshContinuous::test_mesh": "passed",
    "Sharding::test_group": "skipped",
    "Faulty::test_default_messages": "passed",
    "Faulty::test_delayed": "passed",
    "References::test_owners_and_forks": "passed",
    "Helpers::test_group": "passed",
    "Helpers::test_folder_of_one_rank": "passed",
    "Helpers::test_folder_of_all_ranks": "passed",
    "Helpers::test_tcp_store": "passed",
    "Helpers::test_needs_another_nccl": "skipped",
    "Helpers::test_needs_a_large_world": "skipped",
    "Helpers::test_even": "passed",
    "Helpers::test_slow": "skipped",
}

#: What a machine with GPUs, or a torch without the faulty agent, may answer otherwise.
NEEDS = {
    "Sharded::test_needs_gpus",
    "Sharding::test_group",
    "Faulty::test_default_messages",
    "Faulty::test_delayed",
}


inner = one_run(SOURCE)


def test_a_test_has_its_outcome(inner: Inner) -> None:
    results = {nodeid.split("::", 1)[1]: result for nodeid, result in inner.tests.items()}
    assert results.keys() == OUTCOMES.keys()
    others = {test: result for test, result in results.items() if result.outcome != OUTCOMES[test]}
    assert {test: result.text for test, result in others.items() if test not in NEEDS} == {}
    assert {result.outcome for result in others.values()} <= {"passed", "skipped"}


def test_the_reason_of_a_skip_names_the_need(inner: Inner) -> None:
    assert "needs a world of 8 ranks or more" in inner["Helpers::test_needs_a_large_world"].text
    assert "PYTORCH_TEST_WITH_SLOW=1" in inner["Helpers::test_slow"].text
