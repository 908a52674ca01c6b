"""An optimizer may reduce gradients in its step, as Horovod's do: parity is silent, and finds what it forgets."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from everyrank.parity import Parted

from tests.parity.small import Batch, compare, loss, over_ranks, own_rows

pytestmark = pytest.mark.world(2)


class ReducesInPlace(torch.optim.SGD):
    """As Horovod's: gradients are the mean over ranks once a step has begun."""

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        for each in self.parameters():
            dist.all_reduce(each.grad)
            each.grad /= dist.get_world_size()
        return super().step(closure)

    def parameters(self) -> list[Any]:
        return [each for group in self.param_groups for each in group["params"]]


class ForgetsOne(ReducesInPlace):
    def parameters(self) -> list[Any]:
        return super().parameters()[1:]


class ReducesCopies(torch.optim.AdamW):
    """As engines do: nobody sees the gradients with which the step is made."""

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        seen = {each: each.grad for group in self.param_groups for each in group["params"]}
        for each in self.reduced([*seen]):
            each.grad = over_ranks(each.grad)
        returned = super().step(closure)
        for each, gradient in seen.items():
            each.grad = gradient
        return returned

    def reduced(self, parameters: list[Any]) -> list[Any]:
        return parameters


class ForgetsACopy(ReducesCopies):
    def reduced(self, parameters: list[Any]) -> list[Any]:
        return parameters[:-1]


def unreduced(model: Any, optimizer: Any, batch: Batch) -> torch.Tensor:
    found = loss(model, own_rows(batch))
    found.backward()
    optimizer.step()
    optimizer.zero_grad()
    return over_ranks(found)


def with_optimizer(kind: Any, **changed: Any) -> Any:
    plain = next(each for each in (torch.optim.SGD, torch.optim.AdamW) if issubclass(kind, each))
    given = {"lr": 0.1, **({"momentum": 0.9} if plain is torch.optim.SGD else {})}
    return compare(
        parallelize=lambda model: (model, kind(model.parameters(), **given)),
        optimizer=lambda parameters: plain(parameters, **given),
        **{"step": unreduced, **changed},
    )


def test_an_optimizer_may_reduce_gradients_when_it_steps(process_group: Any) -> None:
    report = with_optimizer(ReducesInPlace)
    assert report.passed
    assert not report.not_compared


def test_an_optimizer_may_reduce_gradients_where_nobody_sees_them(process_group: Any) -> None:
    report = with_optimizer(ReducesCopies)
    assert report.passed
    assert {each.partition(" ")[0] for each in report.not_compared} == {"gradient"}


@pytest.mark.parametrize(("kind", "name"), [(ForgetsOne, "first.weight"), (ForgetsACopy, "last.bias")])
def test_what_such_an_optimizer_forgets_is_found(kind: Any, name: str, process_group: Any) -> None:
    with pytest.raises(Parted) as caught:
        with_optimizer(kind)
    first = caught.value.report.findings[0]
    assert (first.kind, first.tensor, first.pattern) == ("gradient", name, "not-reduced")
    assert not first.same


class SumsInPlace(ReducesInPlace):
    def parameters(self) -> list[Any]:
        found = super().parameters()
        for each in found:
            each.grad *= dist.get_world_size()
        return found


class SumsCopies(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        seen = {each: each.grad for group in self.param_groups for each in group["params"]}
        for each, gradient in seen.items():
            each.grad = over_ranks(gradient) * dist.get_world_size()
        returned = super().step(closure)
        for each, gradient in seen.items():
            each.grad = gradient
        return returned


@pytest.mark.parametrize("kind", [SumsInPlace, SumsCopies])
def test_what_such_an_optimizer_reduces_wrongly_is_not_called_unreduced_alone(kind: Any, process_group: Any) -> None:
    with pytest.raises(
        Parted, match=r"has its own part before optimizer\.step\(\), which makes its update of another"
    ):
        with_optimizer(kind)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_an_optimizer_that_does_not_is_no_such(kind: Any, process_group: Any) -> None:
    with pytest.raises(
        Parted, match=r"^parity: gradient of `last\.bias` is not reduced over ranks: .* 3 others"
    ) as caught:
        with_optimizer(kind)
    assert "before optimizer.step()" not in str(caught.value)


def test_an_optimizer_that_hides_a_factor_is_no_such(process_group: Any) -> None:
    def step(model: Any, optimizer: Any, batch: Batch) -> torch.Tensor:
        found = loss(model, own_rows(batch))
        found.backward()
        for each in model.parameters():
            dist.all_reduce(each.grad)
        optimizer.step()
        optimizer.zero_grad()
        return over_ranks(found)

    with pytest.raises(Parted, match=r"^parity: gradient of `last\.bias` is 2 times the plain model's"):
        with_optimizer(torch.optim.AdamW, step=step)
