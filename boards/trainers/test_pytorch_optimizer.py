"""pytorch-optimizer's hundred classes, each under torch's wrappers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from everyrank.fixtures.optimizers import Row, rows
from everyrank.suites import conformance
from wrappers import of_muon, row, under

package = pytest.importorskip("pytorch_optimizer", reason="pip install pytorch-optimizer")

#: Not on the board: what needs more than a step after a backward, and what nobody can repeat.
LEFT_OUT = {
    "AdaHessian": "it needs a second derivative",
    "AdaLOMO": "it is built from the model, and steps in the backward",
    "AdamMini": "it is built from the model",
    "AliG": "it takes the loss, and no closure that computes it",
    "BSAM": "it is random",
    "DeMo": "it communicates itself, in place of DDP",
    "DistributedMuon": "it communicates itself, beside DDP",
    "FAdam": "it takes no fp64",
    "Gravity": "it begins with random numbers",
    "Kron": "it is random",
    "LOMO": "it is built from the model, and steps in the backward",
    "Magma": "it is random",
    "SOAP": "its eigenvectors make 2 % of a parameter of 4e-16 in a gradient, in two steps",
    "SaRA": "it trains small values alone, by a mask",
    "SophiaH": "it needs a second derivative",
}

#: Arguments without which it cannot be built, does not move in the first steps, or hides what it does with its rate.
ARGUMENTS: dict[str, dict[str, Any]] = {
    "AdaShift": {"keep_num": 2},
    "GrokFastAdamW": {"lr": 0.01},
    "Ranger21": {"num_iterations": 10},
}

#: Classes that look at the loss.
CLOSURE = ("EmoFact", "EmoLynx", "EmoNavi")

#: Classes that want to be told which group is for matrices.
SPLIT = ("AdaGO", "AdaMuon", "Muon", "MuonClip", "NorMuon")


def split(optimizer: Any) -> type:
    """Return the class with the groups that it wants: Muon for matrices, and Adam for the rest."""

    def built(self: Any, params: Any, **options: Any) -> None:
        optimizer.__init__(self, of_muon(params), **options)

    return type(optimizer.__name__, (optimizer,), {"__init__": built})


def all_rows() -> Iterator[Row]:
    torch_has = {each.name for each in rows()}
    for name in package.get_supported_optimizers():
        optimizer = package.load_optimizer(name)
        called = optimizer.__name__
        if optimizer.__module__.startswith("torch.") or called in LEFT_OUT:
            continue
        needs = {"2d"} if called == "SpectralSphere" else {"closure"} if called in CLOSURE else set()
        yield row(
            split(optimizer) if called in SPLIT else optimizer,
            ARGUMENTS.get(called),
            f"pytorch_optimizer.{called}" if called in torch_has else "",
            needs=frozenset(needs),
        )


ROWS = list(all_rows())

#: A parameter's norm is a DTensor of one element, which torch takes for a replicated one, and says so.
WARNS = ("ignore:Found a non-scalar tensor with numel=1:UserWarning",)

SUBJECTS = (
    under("ddp", "pytorch-optimizer", ROWS),
    under("fsdp2", "pytorch-optimizer", ROWS, warns=WARNS),
    # It has one group of parameters, and these classes want two.
    under("zero", "pytorch-optimizer", [each for each in ROWS if each.name.rpartition(".")[2] not in SPLIT]),
)


@conformance(*SUBJECTS)
def test_pytorch_optimizer(case: Any) -> None:
    case.run()
