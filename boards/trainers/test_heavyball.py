"""heavyball: its optimizers, each a chain of transforms, under torch's wrappers."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from everyrank.fixtures.optimizers import Row
from everyrank.suites import conformance
from wrappers import WRAPPERS, row, under

heavyball = pytest.importorskip("heavyball", reason="pip install heavyball")

#: A step is compiled for each shape, which takes longer than all laws: the same kernels, one by one.
heavyball.utils.compile_mode = None
heavyball.utils.compile_mode_recommended_to_none = None

RANDOM = "it is random"
NO_FP64 = "it takes no fp64, and in fp32 its eigenvectors make much of a last digit"

#: Not on the board.
LEFT_OUT = {
    "HeavyKLSOAP": NO_FP64,
    "HeavyKLShampoo": NO_FP64,
    "HeavySOAP": NO_FP64,
    "HeavySOAPAdEMAMix": NO_FP64,
    "HeavySOAPNAdam": NO_FP64,
    "HeavySOLP": NO_FP64,
    "KLSOAP": NO_FP64,
    "KLShampoo": NO_FP64,
    "LATHER": RANDOM,
    "PSGDBase": "it is a base class",
    "PSGDKron": RANDOM,
    "PSGDLRA": RANDOM,
    "PSGDPRO": RANDOM,
    "QSGD": RANDOM,
    "SAMWrapper": "it wraps another optimizer",
    "SOAP": NO_FP64,
    "SOAPAdEMAMix": NO_FP64,
    "SOAPBase": "it is a base class",
    "SOAPNAdam": NO_FP64,
    "SOLP": NO_FP64,
    "SplitOpt": "it wraps other optimizers",
}


#: Arguments without which it warns that it takes one for another.
ARGUMENTS = {"AdamC": {"max_lr": 0.0025}}


def all_rows() -> Iterator[Row]:
    for name in heavyball.__all__:
        optimizer = getattr(heavyball, name)
        if inspect.isclass(optimizer) and issubclass(optimizer, torch.optim.Optimizer) and name not in LEFT_OUT:
            yield row(optimizer, ARGUMENTS.get(name), f"heavyball.{name}")


ROWS = list(all_rows())


@conformance(*(under(wrapper, "heavyball", ROWS) for wrapper in WRAPPERS))
def test_heavyball(case: Any) -> None:
    case.run()
