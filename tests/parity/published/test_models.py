"""parity is silent on published models that are trained rightly, and names the faults that are planted in them."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from tests.parity.published.faults import FAULTS, Fault
from tests.parity.published.models import FMS, MIXTRAL, QWEN3, Published, param
from tests.parity.published.ways import Fsdp, Library, LibraryAtOnce, Made, Tensor

pytest.importorskip("transformers", reason="transformers is not installed: make test-models")

pytestmark = [
    pytest.mark.world(2),
    # transformers warns of its own ways, and leaves groups and a progress bar's thread behind.
    pytest.mark.filterwarnings("ignore"),
]

HONEST: list[tuple[Published, Made]] = [
    (QWEN3, Fsdp),
    (QWEN3, Tensor),
    (QWEN3, LibraryAtOnce),
    (MIXTRAL, Fsdp),
    (MIXTRAL, Tensor),
    (MIXTRAL, Library),
    (FMS, Fsdp),
    (FMS, Tensor),
]


def _name(made: Any) -> str:
    return str(made.__name__)


@pytest.mark.parametrize(("published", "made"), [param(model, made, id=_name(made)) for model, made in HONEST])
def test_a_model_that_is_trained_rightly_is_the_plain_model(
    published: Published, made: Made, process_group: Any, tmp_path: Path
) -> None:
    report = made(published, tmp_path).report()
    assert (report.passed, report.not_compared, report.dtypes) == (True, (), ("fp64", "fp32")), report.text()


@pytest.mark.parametrize(
    ("published", "fault"), [param(model, fault, id=fault.name) for fault in FAULTS for model in fault.models]
)
def test_a_planted_fault_is_named(published: Published, fault: Fault, process_group: Any, tmp_path: Path) -> None:
    report = fault.made(published, tmp_path).report()
    assert report.findings, f"nothing was found: {fault.source}\n{report.text()}"
    first = report.findings[0]
    assert (first.kind, first.pattern) == (fault.kind, fault.pattern), report.text()
    assert any(fnmatchcase(first.tensor, pattern) for pattern in fault.tensor(published).split()), report.text()
