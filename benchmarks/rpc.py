"""4 ranks with an RPC agent: start, one call to a neighbour, shutdown, in new processes for every test."""

from __future__ import annotations

from benchmarks.fresh import rows_of
from benchmarks.measure import Row


def rows() -> list[Row]:
    return rows_of("agent", 20, "4 ranks, RPC agent, one call, fresh processes", "RpcAgentTestFixture", 25)
