"""Compares spawned ranks, forks of a clean interpreter that imports torch once, with an interpreter for each rank."""

from __future__ import annotations

from benchmarks.measure import Cost, Row, faster, median, median_ratio, paired, pytest

WORK, TESTS = "4 ranks, gloo, all_reduce, fresh processes in clean interpreters (--launcher=spawn)", 4


def rows() -> list[Row]:
    def run(*options: str) -> Cost:
        return pytest("group", TESTS, "--launcher=spawn", "--fresh-worlds", *options).cost

    rounds = paired(3, run, lambda: run("-o", "everyrank_preload=false"))
    ours, alone = (median(rounds, column) for column in range(2))
    return [
        faster(
            f"{WORK}, {TESTS} tests, against each rank's importing torch itself",
            1,
            median_ratio(rounds, 0, 1),
            f"{ours:.1f} s against {alone:.1f} s",
        )
    ]
