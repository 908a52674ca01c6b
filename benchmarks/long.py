"""5,000 multi-rank tests in one pytest process: a test costs the same at the end as at the start."""

from __future__ import annotations

import itertools
import json
import os
import statistics
import tempfile
from pathlib import Path

from benchmarks.measure import HERE, Row, pytest

#: ``BENCHMARK_LONG`` makes the run shorter, for work on this file; only a whole run writes the plot.
TESTS = int(os.environ.get("BENCHMARK_LONG", "5000"))
WHOLE = 5000
EVERY = TESTS // 100
PLOT = HERE / "long.svg"
WORK = f"{TESTS:,} tests on 2 and 3 ranks in one pytest process, the last tenth against the second"

#: The panels of the plot: the title, and the curves.
_PANELS = {
    "milliseconds a test (and of the controller's processor)": ("time", "processor time"),
    "resident memory, MiB": ("controller memory", "keeper memory", "rank memory"),
    "file descriptors": ("controller descriptors", "keeper descriptors", "rank descriptors"),
}
_COLOURS = ("#3465a4", "#cc7722", "#4e9a06")

Sample = dict[str, float]


def rows() -> list[Row]:
    samples = measured()
    if TESTS == WHOLE:
        PLOT.write_text(plot(samples))
    early, late = samples[len(samples) // 10 : len(samples) // 5], samples[-len(samples) // 10 :]
    compared = [
        _compared("time", early, late, 1.25, "ms", "a test takes"),
        _compared("processor time", early, late, 1.1, "ms", "processor time of the controller"),
    ]
    for name in ("controller", "keeper", "rank"):
        compared.append(_compared(f"{name} memory", early, late, 1.1, "MiB", f"memory of the {name}"))
        compared.append(_compared(f"{name} descriptors", early, late, 1.0, "", f"file descriptors of the {name}"))
    return compared


def measured() -> list[Sample]:
    """Return the samples, with the time of a test since the sample before, in ms, and the memory in MiB."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "samples.json")
        pytest("long", TESTS, limit=1200, BENCHMARK_SAMPLES=str(path), BENCHMARK_EVERY=str(EVERY))
        samples: list[Sample] = json.loads(path.read_text())
    for before, sample in itertools.pairwise(samples):
        sample["time"] = (sample["clock"] - before["clock"]) / EVERY * 1e3
        sample["processor time"] = (sample["used"] - before["used"]) / EVERY * 1e3
    for sample in samples:
        for name in sample:
            if name.endswith("memory"):
                sample[name] /= 2**20
    return samples[1:]


def _compared(name: str, early: list[Sample], late: list[Sample], limit: float, unit: str, quantity: str) -> Row:
    # For descriptors, the most that are open at a time; other figures vary with the load of the host.
    middle = max if name.endswith("descriptors") else statistics.median
    first, last = (middle([sample[name] for sample in part]) for part in (early, late))
    ratio = last / first if first else 1.0
    measured = f"{ratio:.2f} times ({first:.4g} {unit}, then {last:.4g} {unit})".replace(" ,", ",").replace(" )", ")")
    return Row(f"{WORK}: {quantity}", f"at most {limit:g} times", measured, ratio <= limit)


def plot(samples: list[Sample]) -> str:
    """Return three panels as an SVG that a browser shows and that is readable in a diff."""
    width, height, left, top = 860, 180, 60, 34
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{len(_PANELS) * (height + 60) + 10}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for panel, (title, names) in enumerate(_PANELS.items()):
        above = panel * (height + 60) + top
        most = max(sample[name] for sample in samples for name in names) * 1.1 or 1.0
        parts.append(f'<text x="{left}" y="{above - 12}" font-weight="bold">{title}</text>')
        for part in range(5):
            y = above + height - height * part / 4
            parts.append(f'<line x1="{left}" y1="{y:.0f}" x2="{width - 10}" y2="{y:.0f}" stroke="#ddd"/>')
            parts.append(f'<text x="{left - 6}" y="{y + 4:.0f}" text-anchor="end">{most * part / 4:.3g}</text>')
        for number, name in enumerate(names):
            points = " ".join(
                f"{left + (width - left - 10) * sample['tests'] / TESTS:.1f},"
                f"{above + height - height * sample[name] / most:.1f}"
                for sample in samples
            )
            colour = _COLOURS[number]
            parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
            if len(names) > 1:
                label = name.partition(" ")[0]
                x = left + 360 + 90 * number
                parts.append(f'<text x="{x}" y="{above - 12}" fill="{colour}">{label}</text>')
        parts.append(f'<text x="{width - 10}" y="{above + height + 16}" text-anchor="end">{TESTS:,} tests</text>')
    return "\n".join([*parts, "</svg>", ""])
