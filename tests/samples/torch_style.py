"""Tests on torch's private classes, which run unedited under --adopt, and with other import lines on
everyrank.testcase."""

import contextlib
import os
import shutil
import sys
import tempfile
import unittest

import torch
import torch.distributed as dist
import torch.distributed.rpc as rpc
from torch.testing._internal.common_distributed import (
    TEST_SKIPS,
    DistributedTestBase,
    MultiProcContinuousTest,
    MultiProcessTestCase,
    requires_gloo,
    requires_nccl,
    skip_if_lt_x_gpu,
)
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    run_tests,
    subtest,
)
from torch.testing._internal.dist_utils import dist_init, initialize_pg, worker_name
from torch.testing._internal.distributed._shard.sharded_tensor import ShardedTensorTestBase
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorTestBase, with_comms
from torch.testing._internal.distributed.rpc.tensorpipe_rpc_agent_test_fixture import TensorPipeRpcAgentTestFixture

os.environ["WORLD_SIZE"] = "set by the file"


class Spawned(MultiProcessTestCase):
    @property
    def world_size(self):
        return 3

    def setUp(self):
        super().setUp()
        os.environ["SET_IN_SETUP"] = f"by {self.rank}"
        self.set_in_setup = True
        self._spawn_processes()

    def tearDown(self):
        super().tearDown()
        with contextlib.suppress(FileNotFoundError):
            os.remove(self.file_name)

    def group(self):
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)

    @requires_gloo()
    def test_all_reduce(self):
        self.group()
        total = torch.full((2, 2), float(self.rank))
        dist.all_reduce(total)
        self.assertEqual(total, torch.full((2, 2), 3.0))
        self.assertEqual(total + 1e-4, torch.full((2, 2), 3.0), atol=1e-3, rtol=0)
        self.assertNotEqual(total + 1e-4, torch.full((2, 2), 3.0))

    def test_what_a_rank_has(self):
        self.assertEqual(os.environ["SET_IN_SETUP"], "by -1")
        self.assertFalse(hasattr(self, "set_in_setup"))
        self.assertNotIn("RANK", os.environ)
        self.assertEqual(os.environ["WORLD_SIZE"], "set by the file")
        self.assertIn(self.rank, range(3))
        self.assertEqual(torch.initial_seed(), 1234)

    def test_fails_on_one_rank(self):
        self.assertNotEqual(self.rank, 1)

    def test_dies_on_one_rank(self):
        if self.rank == 1:
            os._exit(3)

    def test_exits_on_one_rank(self):
        if self.rank == 1:
            sys.exit(0)

    def test_skips(self):
        self.skipTest("on all ranks")

    def test_skips_by_code(self):
        sys.exit(TEST_SKIPS["backend_unavailable"].exit_code)

    def test_skips_on_one_rank(self):
        if self.rank == 0:
            sys.exit(TEST_SKIPS["generic"].exit_code)

    def test_all_exit_by_code_0(self):
        sys.exit(0)

    @skip_if_lt_x_gpu(8)
    def test_needs_gpus(self):
        self.assertGreaterEqual(torch.cuda.device_count(), 8)

    @unittest.skipIf(True, "not today")
    def test_skipped_by_unittest(self):
        self.fail("skipped")

    @unittest.expectedFailure
    def test_expected_failure(self):
        self.assertEqual(self.rank, -5)


class NeverStarts(MultiProcessTestCase):
    def test_nothing_runs(self):
        self.fail("nobody gets here")


class SkipsInSetUp(MultiProcessTestCase):
    def setUp(self):
        super().setUp()
        raise unittest.SkipTest("setUp says so")

    def test_skipped(self):
        self.fail("skipped")


class FailsInSetUp(MultiProcessTestCase):
    def setUp(self):
        super().setUp()
        raise ValueError("setUp fails")

    def test_not_reached(self):
        self.fail("not reached")


class TearsDownLast(MultiProcessTestCase):
    """tearDown removes what the ranks use: it runs after them, even if rank 0 skips first."""

    @property
    def world_size(self):
        return 3

    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp()
        os.environ["FOLDER"] = self.folder
        self._spawn_processes()

    def tearDown(self):
        super().tearDown()
        found = sorted(name for name in os.listdir(self.folder) if name != "store")
        shutil.rmtree(self.folder)
        self.assertEqual(found, ["rank-1", "rank-2"])

    def work(self):
        store = dist.FileStore(os.path.join(os.environ["FOLDER"], "store"), 3)
        if self.rank == 0:
            store.set("rank 0", "leaves")
            return
        store.wait(["rank 0"])
        for _ in range(50):
            torch.rand(200, 200) @ torch.rand(200, 200)
        with open(os.path.join(os.environ["FOLDER"], f"rank-{self.rank}"), "w"):
            pass

    def test_all_end(self):
        self.work()

    def test_all_skip(self):
        self.work()
        self.skipTest("after some work")


class WaitsForASkip(MultiProcessTestCase):
    @property
    def world_size(self):
        return 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def test_waits_for_ever(self):
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)
        if self.rank == 1:
            self.skipTest("rank 0 is waiting")
        dist.barrier()


class LeavesInRun(MultiProcessTestCase):
    """Opens a group around each test, and exits by code 0 at the end."""

    @property
    def world_size(self):
        return "2"

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    @classmethod
    def _run(cls, rank, test_name, file_name, pipe, **kwargs):
        self = cls(test_name)
        self.rank = rank
        self.file_name = file_name
        dist.init_process_group("gloo", init_method=f"file://{file_name}", rank=rank, world_size=2)
        self.run_test(test_name, pipe)
        dist.barrier()
        dist.destroy_process_group()
        sys.exit(0)

    @property
    def destroy_pg_upon_exit(self):
        return False

    def test_has_a_group(self):
        self.assertEqual(dist.get_world_size(), 2)

    def test_fails(self):
        self.assertEqual(dist.get_world_size(), 3)


@instantiate_parametrized_tests
class Base(DistributedTestBase):
    @property
    def world_size(self):
        return 2

    @parametrize("size", [1, subtest(5, name="five")])
    @parametrize("dtype", [torch.float32, torch.int64])
    def test_gathers(self, size, dtype):
        dist.init_process_group("gloo", store=dist.FileStore(self.file_name, 2), rank=self.rank, world_size=2)
        parts = [torch.empty(size, dtype=dtype) for _ in range(2)]
        dist.all_gather(parts, torch.full((size,), self.rank, dtype=dtype))
        self.assertEqual(parts, [torch.zeros(size, dtype=dtype), torch.ones(size, dtype=dtype)])

    @requires_nccl()
    def test_needs_nccl(self):
        self.assertTrue(dist.is_nccl_available())


class Continuous(MultiProcContinuousTest):
    world_size = 2

    @classmethod
    def backend_str(cls):
        return "gloo"

    def test_1_first(self):
        self.assertEqual(dist.get_world_size(), 2)
        type(self).pid = os.getpid()

    def test_2_in_the_same_process(self):
        total = torch.ones(1)
        dist.all_reduce(total)
        self.assertEqual(total, [2.0])
        self.assertEqual(type(self).pid, os.getpid())

    def test_3_fails(self):
        if self.rank == 1:
            raise ValueError("on rank 1")

    def test_4_after_a_failure(self):
        dist.barrier(group=self.pg)


class OnMesh(DTensorTestBase):
    @property
    def world_size(self):
        return 2

    @with_comms
    def test_mesh(self):
        self.assertEqual(self.build_device_mesh().size(), 2)


class Sharded(ShardedTensorTestBase):
    @property
    def world_size(self):
        return 2

    def test_comms(self):
        self.init_comms(init_rpc=False, backend="gloo")
        self.assertEqual(dist.get_world_size(), 2)
        self.destroy_comms(destroy_rpc=False)


class Calls(TensorPipeRpcAgentTestFixture, MultiProcessTestCase):
    @property
    def world_size(self):
        return 2

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    @dist_init
    def test_call(self):
        self.assertEqual(self.worker_id, self.rank)
        other = worker_name(1 - self.rank)
        self.assertEqual(rpc.rpc_sync(other, torch.add, (torch.ones(2), 1)), torch.full((2,), 2.0))

    @dist_init(setup_rpc=False)
    def test_group_of_its_own(self):
        initialize_pg(self.file_init_method, self.rank, self.world_size)
        dist.barrier()


if __name__ == "__main__":
    run_tests()
