"""A row of one's own has no hidden rule: every contract has cases for it, whatever its variants."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from everyrank.fixtures import optimizers
from everyrank.fixtures.optimizers import Row, Variant
from everyrank.suites import Subject
from everyrank.suites.compare.reference import Plan
from everyrank.suites.engine.case import cases
from everyrank.suites.engine.contract import contracts
from everyrank.suites.errors import DeclarationError
from everyrank.suites.trainer.model import Step
from everyrank.suites.trainer.model_alone import ModelAlone
from everyrank.suites.trainer.planned import planned


@pytest.fixture(autouse=True)
def leaves_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizers, "_added", {})


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


MINE = Row(type("Mine", (Still,), {}))


def _optimizers_of(subject: Subject) -> set[str]:
    return {case.point.optimizer for case in cases(subject)}


@pytest.mark.parametrize("contract", contracts())
def test_a_subject_with_rows_of_its_own_is_asked_about_these_alone(contract: str) -> None:
    mine = Subject("mine", contract=contract, build=print, optimizers=[MINE])
    another = Subject("another", contract=contract, build=print)
    before = _optimizers_of(another)
    assert _optimizers_of(mine) == {"Mine"}
    assert _optimizers_of(another) == before
    assert "Mine" not in before
    assert optimizers.row("Mine") is MINE


def test_two_subjects_may_share_a_row_but_not_its_name() -> None:
    """Nor does a file that is imported again bring another one."""
    for again in (False, True):
        row = Row(type("Shared", (Still,), {}))
        cases(Subject(f"first-{again}", contract="trainer", build=print, optimizers=[row]))
        cases(Subject(f"second-{again}", contract="trainer", build=print, optimizers=[row]))
    for name in ("Shared", "SGD"):
        other = Row(type(name, (Still,), {"__module__": "elsewhere"}))
        with pytest.raises(DeclarationError, match=f"third: there is another row '{name}' already"):
            cases(Subject("third", contract="trainer", build=print, optimizers=[other]))


def test_a_class_in_place_of_a_row_is_refused() -> None:
    named = r"mine: optimizers is a list of rows, such as Row\(Still\), not of "
    with pytest.raises(DeclarationError, match=named):
        Subject("mine", contract="trainer", build=print, optimizers=[Still])  # type: ignore[list-item]


def test_laws_train_the_model_that_a_row_names() -> None:
    row = Row(type("Equal", (Still,), {}), model="equal-shapes")
    found = cases(Subject("mine", contract="trainer", build=print, optimizers=[row]))
    points: list[Any] = [case.point for case in found if case.law.id in ("parity.train", "state.round-trip")]
    assert {point.plan.model for point in points} == {"equal-shapes"}


class Halving(torch.optim.SGD):
    """One that has an attribute, and whose step takes no closure."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, lr)
        self.part = 0.5
        self.first = self.param_groups[0]["params"][0]

    def step(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad *= self.part
        super().step()


def test_the_reference_of_trainer_goes_on_from_a_copy_of_any_optimizer() -> None:
    optimizers.register(Row(Halving))
    try:
        alone = ModelAlone(planned(Plan(2, optimizer="Halving", variant="defaults")))
        start = alone.values
        alone.step(Step(), 1, 0, 2)
        copied = alone.copy()
        for each in (alone, copied):
            each.step(Step(), 2, 0, 2)
    finally:
        optimizers.unregister("Halving")
    made: Any = copied.optimizer
    assert made.first is made.param_groups[0]["params"][0]
    for name, value in alone.values.items():
        assert torch.equal(value, copied.values[name])
        assert not torch.equal(value, start[name])
