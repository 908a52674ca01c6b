"""Measures the same work in a world that serves many tests."""

from __future__ import annotations

from benchmarks.measure import WITHOUT, Row, at_most, faster, floor, median, median_ratio, paired, pytest

FEW, MANY = 20, 220
WORK = "4 ranks, gloo, all_reduce, warm world"


def rows() -> list[Row]:
    rounds = paired(
        3,
        lambda: pytest("torch_continuous", FEW, *WITHOUT).cost,
        lambda: pytest("group", FEW).cost,
        lambda: pytest("group", MANY).cost,
        lambda: floor("again", 4, MANY),
        lambda: floor("again-batch", 4, MANY),
    )
    more = [((many - few) / (MANY - FEW), bare, batch) for _, few, many, bare, batch in rounds]
    one_more, bare, batch = (median(more, column) * 1e3 for column in range(3))
    ratio = median_ratio(more, 0, 2)
    return [
        at_most(
            f"{WORK}, one more test, against its all_reduce and a barrier in bare forks",
            1.5,
            median_ratio(more, 0, 1),
            f"{one_more:.1f} ms against {bare:.1f} ms",
        ),
        Row(
            f"{WORK}, one more test, against the same in bare forks under everyrank's scheduling policy",
            "",
            f"{ratio.seconds:.2f} times ({one_more:.1f} ms against {batch:.1f} ms)",
            None,
            ratio,
        ),
        faster(
            f"{WORK}, a class of {FEW} with start and end, against torch's MultiProcContinuousTest",
            1,
            median_ratio(rounds, 1, 0),
            f"{median(rounds, 1) * 1e3:.0f} ms against {median(rounds, 0):.1f} s",
        ),
    ]
