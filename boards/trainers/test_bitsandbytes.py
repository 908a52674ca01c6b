"""bitsandbytes: its optimizers in 32 and in 8 bits, under torch's wrappers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from everyrank.suites import conformance
from everyrank.suites.engine.subject import Bound
from wrappers import WIDE, WRAPPERS, row, under

optim = pytest.importorskip("bitsandbytes.optim", reason="pip install bitsandbytes")

#: Arguments without which it cannot be built.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "LARS": {"lr": 0.01, "momentum": 0.9},
    "SGD": {"lr": 0.01, "momentum": 0.9},
}

#: Each in 32 and in 8 bits. AdEMAMix32bit takes no step, AdEMAMix does.
NAMES = ("Adagrad", "Adam", "AdamW", "AdEMAMix", "LAMB", "LARS", "Lion", "RMSprop", "SGD")

ROWS = [
    row(getattr(optim, f"{name}{bits}"), ARGUMENTS.get(name), f"bitsandbytes.{name}{bits}", model=WIDE)
    for name in NAMES
    for bits in ("", "8bit")
]

BOUND = Bound(1e-6, "it computes in fp32")

#: A parameter's norm is a DTensor of one element, which torch takes for a replicated one, and says so.
WARNS = ("ignore:Found a non-scalar tensor with numel=1:UserWarning",)


@conformance(*(under(wrapper, "bitsandbytes", ROWS, bound=BOUND, warns=WARNS) for wrapper in WRAPPERS))
def test_bitsandbytes(case: Any) -> None:
    case.run()


@pytest.mark.parametrize("name", NAMES)
def test_a_matrix_has_a_state_of_8_bits(name: str) -> None:
    model = WIDE.build()
    model(torch.ones(2, 4)).sum().backward()
    trained = getattr(optim, f"{name}8bit")(model.parameters(), **ARGUMENTS.get(name, {}))
    trained.step()
    assert all(trained.state[each.weight]["state1"].dtype == torch.uint8 for each in (model.first, model.last))
