"""Measures the controller alone, with 64 nodes that are only simulated.

A world's ranks work for as long as the test takes; the controller adds its own work to that. So the question is how
much later a run ends than its tests alone would let it.
"""

from __future__ import annotations

import os

from benchmarks.measure import HERE, Cost, Row, at_most, pytest

NODES, WORKERS, TESTS, SECONDS = 64, 8, 10_000, 0.1


def rows() -> list[Row]:
    size = NODES // WORKERS
    all_tests = _run(TESTS, size, "-n", str(WORKERS), nodes=size, case=SECONDS)
    alone = TESTS / WORKERS * SECONDS
    few, many = (_run(tests, NODES, nodes=NODES, case=0.0) for tests in (100, 1100))
    one_more = (many - few) / 1000
    return [
        at_most(
            f"{NODES} simulated nodes, {TESTS:,} cases of {SECONDS * 1e3:.0f} ms on worlds of {size}, -n {WORKERS}, "
            "against what the cases take alone",
            1.25,
            Cost(all_tests.seconds / alone, float("nan")),
            f"{all_tests.seconds:.0f} s against {alone:.0f} s",
        ),
        Row(
            f"{NODES} simulated nodes, one more case on a world of all of them, whose ranks answer at once",
            "",
            f"{one_more.seconds * 1e3:.1f} ms, {NODES / one_more.seconds:,.0f} ranks a second",
            None,
        ),
    ]


def _run(tests: int, size: int, *options: str, nodes: int, case: float) -> Cost:
    path = os.pathsep.join([str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {"BENCHMARK_SIZE": str(size), "BENCHMARK_NODES": str(nodes), "BENCHMARK_CASE": str(case)}
    arguments = ("-p", "benchmarks.simulated", "--launcher=simulated", *options)
    return pytest("simulated", tests, *arguments, limit=900, PYTHONPATH=path, **environment).cost
