"""200 single-process tests, with the plugin and without."""

from __future__ import annotations

import statistics

from benchmarks.measure import WITHOUT, Cost, Row, Times, median, median_ratio, paired, pytest

TESTS = 200
NOISE = 1.05  # two runs of the same file differ by as much
COLLECTION = 0.050


def rows() -> list[Row]:
    seen: list[Times] = []

    def run(*options: str) -> Cost:
        seen.append(pytest("plain", TESTS, *options))
        return Cost(seen[-1].start + seen[-1].collection + seen[-1].loop, seen[-1].processor)

    rounds = paired(9, run, lambda: run(*WITHOUT))
    ratio = median_ratio(rounds, 0, 1)
    slower = statistics.median(
        with_plugin.collection - without.collection
        for with_plugin, without in zip(seen[::2], seen[1::2], strict=True)
    )
    figures = f"{median(rounds, 0) * 1e3:.0f} ms against {median(rounds, 1) * 1e3:.0f} ms"
    return [
        Row(
            f"{TESTS} single-process tests, with the plugin against without",
            f"no slower (at most {NOISE:g} times)",
            f"{ratio.seconds:.2f} times ({figures})",
            ratio.seconds <= NOISE,
            ratio,
        ),
        Row(
            f"{TESTS} single-process tests, what the plugin adds to collection",
            f"at most {COLLECTION * 1e3:.0f} ms",
            f"{slower * 1e3:.1f} ms",
            slower <= COLLECTION,
        ),
    ]
