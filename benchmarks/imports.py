"""Compares tests that trigger late imports of torch with tests whose file has these imports at its top."""

from __future__ import annotations

from benchmarks.measure import Cost, Row, at_most, faster, median, median_ratio, paired, pytest

FEW, MANY = 3, 13
KINDS = {"optimizer": "an optimizer's step", "ddp": "DDP", "assert_close": "assert_close"}
FRESH = "--fresh-worlds"


def rows() -> list[Row]:
    return [row for kind, work in KINDS.items() for row in _rows(kind, f"4 ranks, gloo, {work}")]


def _rows(kind: str, work: str) -> list[Row]:
    def run(tests: int, *options: str, **environment: str) -> Cost:
        only = [f"test_{kind}[{number}]" for number in range(tests)]
        return pytest("imports", tests, *options, only=only, **environment).cost

    def one_more(*options: str, **environment: str) -> Cost:
        """Return the cost of one more test, without the imports of the first tests."""
        few = run(FEW, *options, **environment)
        return (run(MANY, *options, **environment) - few) / (MANY - FEW)

    rounds = paired(
        3,
        lambda: one_more(FRESH),
        lambda: one_more(FRESH, BENCHMARK_AT_TOP="1"),
        lambda: run(FEW, FRESH),
        lambda: run(FEW, FRESH, "-o", "everyrank_preload=false"),
        one_more,
    )
    fresh, top, first, alone, warm = (median(rounds, column) for column in range(5))
    return [
        at_most(
            f"{work}, fresh processes, one more test, against a file that imports at its top what that needs",
            1.25,
            median_ratio(rounds, 0, 1),
            f"{fresh * 1e3:.0f} ms against {top * 1e3:.0f} ms",
        ),
        faster(
            f"{work}, fresh processes, the first {FEW} tests, against each rank's importing it itself",
            1,
            median_ratio(rounds, 2, 3),
            f"{first:.1f} s against {alone:.1f} s",
        ),
        Row(f"{work}, warm world, one more test", "", f"{warm * 1e3:.1f} ms", None),
    ]
