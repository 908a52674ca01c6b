"""One call to a neighbour under torch's own RPC fixture, with new processes for each test."""

import torch
import torch.distributed.rpc as rpc
from torch.testing._internal.common_distributed import MultiProcessTestCase
from torch.testing._internal.dist_utils import dist_init
from torch.testing._internal.distributed.rpc.tensorpipe_rpc_agent_test_fixture import TensorPipeRpcAgentTestFixture


class Call(TensorPipeRpcAgentTestFixture, MultiProcessTestCase):
    def setUp(self):
        super().setUp()
        self._spawn_processes()

    @dist_init
    def test_call(self):
        vector = torch.ones(2)
        neighbour = f"worker{(self.rank + 1) % self.world_size}"
        assert rpc.rpc_sync(neighbour, torch.add, args=(vector, vector)).eq(2).all()
