"""Measures a sweep: a test runs once for each of its 20 collectives, and a rank dies there."""

from __future__ import annotations

from benchmarks.measure import Row, pytest, under

MOST = 10


def rows() -> list[Row]:
    return [under("4 ranks, a death at each of 20 collectives", MOST, pytest("faults", 1).cost)]


if __name__ == "__main__":
    print(rows())
