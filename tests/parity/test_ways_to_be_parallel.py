"""parity is silent on each honest way to be parallel, and names where each rogue parts from the plain model."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import pytest
import torch
from everyrank.fixtures.parallel.rogue import Rogue
from everyrank.fixtures.parallel.rogues import ROGUES
from everyrank.fixtures.parallel.subject import Parallel
from everyrank.fixtures.parallel.subjects import SUBJECTS
from everyrank.parity import Finding, Parted, Report, parity

pytestmark = [
    pytest.mark.group("parity"),
    pytest.mark.filterwarnings("ignore:.*does not define an element-wise:UserWarning"),
]

#: What runs with all tests, at 2 ranks: each of the main ways, and a rogue of each pattern.
SMOKE = {"ddp", "fsdp", "megatron-sequence", "torch-tensor"}
SMOKE_ROGUES = {
    "never-syncs",
    "computes-another-layer",
    "gives-the-last-steps-mean",
    "divides-by-no-tokens",
    "reduces-in-bfloat16",
    "norm-is-local",
}


def _marks(name: str, size: int, smoke: set[str]) -> list[Any]:
    return [pytest.mark.world(size), *([pytest.mark.smoke] if name in smoke and size == 2 else [])]


HONEST = [
    pytest.param(name, marks=_marks(name, size, SMOKE), id=f"{name}-{size}")
    for name, subject in SUBJECTS.items()
    for size in subject.sizes
]
FOUND = [pytest.param(name, marks=_marks(name, rogue.size, SMOKE_ROGUES)) for name, rogue in ROGUES.items()]


def compared(subject: Parallel, dtype: str = "float64") -> Report:
    dtypes = {} if dtype == "float64" else {"dtypes": (getattr(torch, dtype),)}
    try:
        return parity(**subject.arguments(), **dtypes)
    except Parted as parted:
        return parted.report
    finally:
        subject.close()


@pytest.mark.parametrize("name", HONEST)
def test_an_honest_subject_trains_as_the_plain_model(name: str, process_group: Any) -> None:
    report = compared(SUBJECTS[name]())
    assert report.passed, report.text()


@pytest.mark.parametrize("name", FOUND)
def test_a_rogue_is_found_where_it_parts(name: str, process_group: Any) -> None:
    rogue = ROGUES[name]
    report = compared(rogue.subject(), rogue.dtype)
    assert report.findings, f"nothing was found: {rogue.source}\n{report.text()}"
    first = report.findings[0]
    assert _is_named(rogue, first), f"{rogue.source}: {rogue.kinds} {rogue.tensors} {rogue.patterns}\n{report.text()}"
    assert len(report.text().splitlines()) < 40


def _is_named(rogue: Rogue, first: Finding) -> bool:
    right_tensor = not first.tensor or any(fnmatchcase(first.tensor, pattern) for pattern in rogue.tensors or ("*",))
    return first.kind in rogue.kinds and right_tensor and (not any(rogue.patterns) or first.pattern in rogue.patterns)
