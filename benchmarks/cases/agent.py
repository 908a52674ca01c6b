"""One call to a neighbour."""

import os

import pytest
import torch
import torch.distributed.rpc as rpc


@pytest.mark.world(4)
@pytest.mark.parametrize("number", range(int(os.environ["BENCHMARK_TESTS"])))
def test_call(rpc_agent, number):
    vector = torch.ones(2)
    neighbour = rpc_agent.names[(rpc_agent.rank + 1) % len(rpc_agent.names)]
    assert rpc.rpc_sync(neighbour, torch.add, args=(vector, vector)).eq(2).all()
