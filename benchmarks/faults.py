"""Measures a sweep: a test runs once for each of its 20 collectives, and a rank dies there."""

from __future__ import annotations

from benchmarks.measure import Row, pytest

MOST = 10


def rows() -> list[Row]:
    cost = pytest("faults", 1).cost
    return [
        Row(
            "4 ranks, a death at each of 20 collectives",
            f"under {MOST} s",
            f"{cost.seconds:.1f} s, of which the processors take {cost.processor:.1f} s",
            cost.seconds < MOST,
        )
    ]


if __name__ == "__main__":
    print(rows())
