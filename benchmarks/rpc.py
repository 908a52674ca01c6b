"""4 ranks with an RPC agent: start, one call to a neighbour, shutdown, in new processes for every test."""

from __future__ import annotations

from benchmarks.measure import WITHOUT, Row, at_most, faster, floor, median, median_ratio, paired, pytest

TESTS = 20
WORK = "4 ranks, RPC agent, one call, fresh processes"


def rows() -> list[Row]:
    near = paired(5, lambda: pytest("agent", TESTS, "--fresh-worlds").cost / TESTS, lambda: floor("agent", 4, TESTS))
    far = paired(
        3,
        lambda: pytest("torch_agent", 1, *WITHOUT).cost,
        lambda: pytest("agent", TESTS, "--fresh-worlds").cost / TESTS,
    )
    ours, bare, theirs = median(near, 0), median(near, 1), median(far, 0)
    return [
        at_most(
            f"{WORK}, against plain os.fork",
            1.25,
            median_ratio(near, 0, 1),
            f"{ours * 1e3:.0f} ms against {bare * 1e3:.0f} ms",
        ),
        faster(
            f"{WORK}, against torch's RpcAgentTestFixture",
            25,
            median_ratio(far, 1, 0),
            f"{median(far, 1) * 1e3:.0f} ms against {theirs:.1f} s",
        ),
    ]
