"""Measures `--mutate`: a test runs once for each change of each of its 20 collectives."""

from __future__ import annotations

from benchmarks.measure import Row, pytest

MOST = 6


def rows() -> list[Row]:
    cost = pytest("mutate", 1, "--mutate", "--mutate-budget=600s").cost
    return [
        Row(
            "4 ranks, each change of each of 20 collectives",
            f"under {MOST} s",
            f"{cost.seconds:.1f} s, of which the processors take {cost.processor:.1f} s",
            cost.seconds < MOST,
        )
    ]


if __name__ == "__main__":
    print(rows())
