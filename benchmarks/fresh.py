"""4 ranks, gloo, one all_reduce, in new processes for every test."""

from __future__ import annotations

from benchmarks.measure import WITHOUT, Cost, Row, at_most, faster, floor, median, median_ratio, paired, pytest


def rows() -> list[Row]:
    return rows_of("group", 30, "4 ranks, gloo, all_reduce, fresh processes", "MultiProcessTestCase", 50)


def rows_of(case: str, tests: int, work: str, fixture: str, times_faster: float) -> list[Row]:
    """Return how a case in new processes compares with plain forks, and with a fixture of torch's."""

    def run() -> Cost:
        return pytest(case, tests, "--fresh-worlds").cost / tests

    near = paired(5, run, lambda: floor(case, 4, tests))
    far = paired(3, lambda: pytest(f"torch_{case}", 1, *WITHOUT).cost, run)
    fresh, bare, theirs = median(near, 0), median(near, 1), median(far, 0)
    return [
        at_most(
            f"{work}, against plain os.fork",
            1.25,
            median_ratio(near, 0, 1),
            f"{fresh * 1e3:.0f} ms against {bare * 1e3:.0f} ms",
        ),
        faster(
            f"{work}, against torch's {fixture}",
            times_faster,
            median_ratio(far, 1, 0),
            f"{median(far, 1) * 1e3:.0f} ms against {theirs:.1f} s",
        ),
    ]
