"""Measures the same work in a world that serves many tests."""

from __future__ import annotations

from benchmarks.measure import WITHOUT, Row, faster, floor, median, median_ratio, paired, pytest

FEW, MANY = 20, 220
WORK = "4 ranks, gloo, all_reduce, warm world"


def rows() -> list[Row]:
    rounds = paired(
        3,
        lambda: pytest("torch_continuous", FEW, *WITHOUT).loop,
        lambda: pytest("group", FEW).loop,
        lambda: pytest("group", MANY).loop,
        lambda: floor("again", 4, MANY),
    )
    one_more = median([((many - few) / (MANY - FEW),) for _, few, many, _ in rounds], 0)
    bare = median(rounds, 3)
    figures = f"{one_more * 1e3:.1f} ms, where its all_reduce and a barrier take {bare * 1e3:.1f} ms in bare forks"
    return [
        Row(f"{WORK}, one more test", "at most 5 ms", figures, one_more <= 0.005),
        faster(
            f"{WORK}, a class of {FEW} with start and end, against torch's MultiProcContinuousTest",
            1,
            median_ratio(rounds, 0, 1),
            f"{median(rounds, 1) * 1e3:.0f} ms against {median(rounds, 0):.1f} s",
        ),
    ]
