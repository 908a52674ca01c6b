"""Compares tests that trigger late imports of torch with tests whose file has these imports at its top."""

from __future__ import annotations

from benchmarks.measure import Cost, Row, Times, at_most, faster, median, median_ratio, paired, pytest

#: The first tests of a run, in which the imports happen, and the last ones, which come after them.
FIRST, SETTLED, FRESH, WARM = 3, 20, 80, 220
KINDS = {"optimizer": "an optimizer's step", "ddp": "DDP", "assert_close": "assert_close"}
NEW = "--fresh-worlds"


def rows() -> list[Row]:
    return [row for kind, work in KINDS.items() for row in _rows(kind, f"4 ranks, gloo, {work}")]


def _rows(kind: str, work: str) -> list[Row]:
    def run(tests: int, *options: str, **environment: str) -> Times:
        only = [f"test_{kind}[{number}]" for number in range(tests)]
        return pytest("imports", tests, *options, only=only, **environment)  # type: ignore[arg-type]

    def first(*options: str) -> Cost:
        return run(FIRST, NEW, *options).cost

    def one_more(tests: int, *options: str, **environment: str) -> Cost:
        """Return the cost of one more test after the first tests with their imports.

        One run has the time. Processor time is only known of a whole run, so it is the difference of two.
        """
        few = run(SETTLED, *options, **environment)
        many = run(tests, *options, BENCHMARK_SETTLED=str(SETTLED), **environment)
        return Cost(many.later, many.processor - few.processor) / (tests - SETTLED)

    rounds = paired(
        3,
        lambda: one_more(FRESH, NEW),
        lambda: one_more(FRESH, NEW, BENCHMARK_AT_TOP="1"),
        first,
        lambda: first("-o", "everyrank_preload=false"),
        lambda: one_more(WARM),
    )
    fresh, top, early, alone, warm = (median(rounds, column) for column in range(5))
    return [
        at_most(
            f"{work}, fresh processes, one more test, against a file that imports at its top what that needs",
            1.25,
            median_ratio(rounds, 0, 1),
            f"{fresh * 1e3:.0f} ms against {top * 1e3:.0f} ms",
        ),
        faster(
            f"{work}, fresh processes, the first {FIRST} tests, against each rank's importing it itself",
            1,
            median_ratio(rounds, 2, 3),
            f"{early:.1f} s against {alone:.1f} s",
        ),
        Row(f"{work}, warm world, one more test", "", f"{warm * 1e3:.1f} ms", None),
    ]
