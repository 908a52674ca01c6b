"""Parallel subjects train as the plain model does: two steps in fp64, start, loss, gradients, norm and parameters."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
import torch

from tests.parity.parallel import check
from tests.parity.parallel.subjects import SUBJECTS

pytestmark = pytest.mark.filterwarnings("ignore:.*does not define an element-wise:UserWarning")

#: Subjects whose parts in a world of 3 or 4 are of another kind than in a world of 2.
LARGER = {
    "averaged": 3,
    "torch-sequence": 3,
    "fsdp": 4,
    "fsdp-divided": 3,
    "context-zigzag": 3,
    "expert-parallel": 3,
    "pipeline-tied": 4,
    "torch-pipeline-alternating": 4,
}


#: Tensors whose gradient is zero but for rounding, of optimizers without an epsilon: these take rounding's signs.
SIGNS = {"fsdp-adafactor": (".attention.k.bias",)}

#: One of each family runs with all other tests.
SMOKE = ("ddp", "fsdp", "megatron", "torch-sequence", "context", "expert-parallel", "pipeline")

CASES = [
    pytest.param(
        name,
        marks=[pytest.mark.world(size), *([pytest.mark.smoke] if name in SMOKE and size == 2 else [])],
        id=f"{name}-{size}",
    )
    for name, subject in SUBJECTS.items()
    for size in sorted({subject.sizes[0], LARGER.get(name, subject.sizes[0])})
]


@pytest.mark.group("parallel")
@pytest.mark.parametrize("name", CASES)
def test_subject_trains_as_the_plain_model_does(name: str, process_group: Any) -> None:
    exact = "float64" in SUBJECTS[name].dtypes
    with closing(SUBJECTS[name]()) as subject:
        found = check.deviations(subject, torch.float64 if exact else torch.bfloat16)
    bound = 1e-9 if exact else 0.1  # steps of Adam, which are as large as the learning rate whatever the gradient
    wrong = {tensor: error for tensor, error in found.items() if not error < bound}
    assert [tensor for tensor in wrong if not tensor.endswith(SIGNS.get(name, ()))] == [], wrong
