"""Calls between workers."""

import pytest
from my_project import counter


@pytest.mark.world(3)
@pytest.mark.parametrize("owner", ["worker0", "worker2"])
def test_every_worker_counts(rpc_agent, owner):
    assert counter.everywhere(rpc_agent.names, amount=5, owner=owner) == 15
