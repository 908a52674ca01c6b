"""A row of one's own has no hidden rule: every contract has cases for it, whatever its variants."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from everyrank.fixtures import optimizers
from everyrank.fixtures.optimizers import Row, Variant
from everyrank.suites import Subject
from everyrank.suites.engine.case import cases
from everyrank.suites.engine.contract import contracts


class Still(torch.optim.SGD):
    """An optimizer of another project."""


class Needy(torch.optim.SGD):
    """One whose learning rate has no default."""

    def __init__(self, params: Any, lr: float, momentum: float = 0.0) -> None:
        super().__init__(params, lr, momentum)


DEFAULTS = Variant("defaults", {"lr": 0.1})
ROWS = {
    "class-alone": Row(Still),
    "needy": Row(Needy, (DEFAULTS,)),
    "needy-with-momentum": Row(Needy, (DEFAULTS, Variant("momentum", {"lr": 0.1, "momentum": 0.5}))),
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("contract", contracts())
def test_every_contract_has_cases_that_use_the_variants_of_the_row(contract: str, name: str) -> None:
    row = optimizers.register(ROWS[name])
    try:
        found = [case.point for case in cases(Subject("any", contract=contract, build=print))]
    finally:
        optimizers.unregister(row.name)
    mine: list[Any] = [point for point in found if point.optimizer == row.name]
    variants = {getattr(getattr(point, "plan", point), "variant", "defaults") for point in mine}
    assert mine
    assert {getattr(variant, "name", variant) for variant in variants} <= {variant.name for variant in row.variants}
