"""Measures `--mutate`: a test runs once for each change of each of its 20 collectives."""

from __future__ import annotations

from benchmarks.measure import Row, pytest, under

MOST = 6


def rows() -> list[Row]:
    cost = pytest("mutate", 1, "--mutate", "--mutate-budget=600s").cost
    return [under("4 ranks, each change of each of 20 collectives", MOST, cost)]


if __name__ == "__main__":
    print(rows())
