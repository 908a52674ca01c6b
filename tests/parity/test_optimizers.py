"""What users do with an optimizer: closures, schedulers, scalers of the loss, clips, optimizers of other kinds."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from everyrank.parity import Parted, Unusable
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from tests.parity.small import Batch, compare, loss, over_ranks, own_rows

pytestmark = pytest.mark.world(2)


def backward(model: Any, batch: Batch) -> torch.Tensor:
    found = loss(model, own_rows(batch))
    found.backward()
    return found


def step(model: Any, optimizer: Any, batch: Batch) -> torch.Tensor:
    found = backward(model, batch)
    optimizer.step()
    optimizer.zero_grad()
    return over_ranks(found)


# -- closures --------------------------------------------------------------------------------------------------------


def with_closure(model: Any, optimizer: Any, batch: Batch) -> torch.Tensor:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        return over_ranks(backward(model, batch))

    found: torch.Tensor = optimizer.step(closure)
    return found


class Below(torch.optim.AdamW):
    """A class whose step calls that of its parent: torch runs hooks in both."""

    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, Below])
def test_a_closure_makes_the_gradients(kind: Any, process_group: Any) -> None:
    report = compare(step=with_closure, optimizer=lambda parameters: kind(parameters, lr=0.1))
    assert report.passed
    assert not report.not_compared


def test_a_fault_in_a_closure_is_found(process_group: Any) -> None:
    def doubled(model: Any, optimizer: Any, batch: Batch) -> torch.Tensor:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            found = loss(model, own_rows(batch))
            (2 * found).backward()
            return over_ranks(found)

        found: torch.Tensor = optimizer.step(closure=closure)
        return found

    with pytest.raises(Parted, match=r"gradient of `last.bias` is 2 times the plain model's"):
        compare(step=doubled)


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs_is_compared(search: str | None, process_group: Any) -> None:
    def lbfgs(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(parameters, lr=0.5, max_iter=4, line_search_fn=search)

    report = compare(step=with_closure, optimizer=lbfgs)
    assert report.passed
    assert not report.not_compared


def test_lbfgs_in_the_plain_loop_is_one_sentence(process_group: Any) -> None:
    with pytest.raises(Unusable, match=re.escape("LBFGS needs a closure in its step: pass step=, which calls")):
        compare(optimizer=lambda parameters: torch.optim.LBFGS(parameters))


# -- schedulers ------------------------------------------------------------------------------------------------------


def test_a_scheduler_may_be_made_in_a_step(process_group: Any) -> None:
    def scheduled(model: Any, optimizer: Any, batch: Batch) -> torch.Tensor:
        # It is the first step of each that counts: the rate stays.
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0)
        found = step(model, optimizer, batch)
        scheduler.step()
        return found

    assert compare(step=scheduled).passed


def halved(parameters: Any) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    optimizer.scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)  # type: ignore[attr-defined]
    return optimizer


def test_a_scheduler_that_a_step_steps_is_named_and_no_number_of_ranks(process_group: Any) -> None:
    def scheduled(model: Any, optimizer: Any, batch: Batch) -> torch.Tensor:
        found = step(model, optimizer, batch)
        optimizer.scheduler.step()
        return found

    with pytest.raises(Parted) as caught:
        compare(step=scheduled, optimizer=halved)
    first = str(caught.value).splitlines()[0]
    assert first == (
        "parity: update of `last.bias` is made with the learning rate 0.05 on ranks 0 and 1, where the plain "
        "optimizer has 0.1 (step 2, fp64 and fp32), as 3 others of its kind"
    )
    assert "only if optimizer= returns both, as [optimizer, scheduler]" in str(caught.value)
    assert not caught.value.report.findings[0].pattern


def test_a_scheduler_that_warms_up_from_the_first_step_on_is_named(process_group: Any) -> None:
    def warming(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1)

    def scheduled(model: Any, optimizer: Any, batch: Batch) -> torch.Tensor:
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.2)
        return step(model, optimizer, batch)

    with pytest.raises(Parted, match=r"its learning rate is 0\.02, and the plain optimizer's 0\.1 ") as caught:
        compare(step=scheduled, optimizer=warming)
    assert "only if optimizer= returns both, as [optimizer, scheduler]" in str(caught.value)


def test_a_scheduler_that_changes_more_than_the_rate_is_named_with_the_rate(process_group: Any) -> None:
    def one_cycle(parameters: Any) -> torch.optim.Optimizer:
        optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=10)
        optimizer.scheduler = scheduler  # type: ignore[attr-defined]
        return optimizer

    def scheduled(model: Any, optimizer: Any, batch: Batch) -> torch.Tensor:
        found = step(model, optimizer, batch)
        optimizer.scheduler.step()
        return found

    with pytest.raises(Parted, match=r"with the learning rate 0\.26, where the plain optimizer has 0\.02"):
        compare(step=scheduled, optimizer=one_cycle)


# -- scalers and clips -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("unscaled", [True, False])
@pytest.mark.parametrize("fused", [True, False])
def test_a_scaler_of_the_loss(unscaled: bool, fused: bool, process_group: Any) -> None:
    def scaled(model: Any, optimizer: Any, batch: Batch) -> torch.Tensor:
        scaler = torch.amp.GradScaler("cpu")
        found = loss(model, own_rows(batch))
        scaler.scale(found).backward()
        if unscaled:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return over_ranks(found)

    report = compare(step=scaled, optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=0.1, fused=fused))
    assert report.passed
    assert not report.not_compared
    assert not report.remarks


def clipped_by_value(model: Any, optimizer: Any, batch: Batch) -> torch.Tensor:
    found = backward(model, batch)
    nn.utils.clip_grad_value_(model.parameters(), 0.05)
    optimizer.step()
    optimizer.zero_grad()
    return over_ranks(found)


def test_a_clip_by_value(process_group: Any) -> None:
    report = compare(step=clipped_by_value)
    assert report.passed
    assert not report.not_compared


def test_gradients_that_are_wrong_before_a_clip_by_value_are_found(process_group: Any) -> None:
    def doubled(model: Any, optimizer: Any, batch: Batch) -> torch.Tensor:
        found = loss(model, own_rows(batch))
        (2 * found).backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.001)
        optimizer.step()
        optimizer.zero_grad()
        return over_ranks(found)

    with pytest.raises(Parted, match=r"gradient of `last.bias` is 2 times the plain model's"):
        compare(step=doubled)


# -- optimizers of other kinds ---------------------------------------------------------------------------------------


def test_an_optimizer_over_ranks_is_refused_as_a_plain_optimizer(process_group: Any) -> None:
    def over_all(parameters: Any) -> Any:
        return ZeroRedundancyOptimizer(parameters, torch.optim.SGD, lr=0.1)

    with pytest.raises(Unusable) as caught:
        compare(optimizer=over_all)
    assert "the step of ZeroRedundancyOptimizer, which optimizer= makes, calls a collective" in str(caught.value)
    assert "return (module, optimizer) from parallelize" in str(caught.value)


def test_an_optimizer_over_ranks_beside_a_plain_optimizer(process_group: Any) -> None:
    def parallelize(model: nn.Module) -> Any:
        wrapped = DistributedDataParallel(model)
        return wrapped, ZeroRedundancyOptimizer(wrapped.parameters(), torch.optim.SGD, lr=0.1)

    report = compare(parallelize=parallelize, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1))
    assert report.passed
    assert not report.not_compared


class Plain:
    """An optimizer of a user's own, which is none of torch's."""

    def __init__(self, parameters: Any) -> None:
        self.parameters = [*parameters]

    @torch.no_grad()
    def step(self) -> None:
        for each in self.parameters:
            each.sub_(0.1 * each.grad)

    def zero_grad(self) -> None:
        for each in self.parameters:
            each.grad = None


@pytest.mark.parametrize("train", [step, None])
def test_an_optimizer_that_is_none_of_torchs(train: Callable[..., Any] | None, process_group: Any) -> None:
    assert compare(step=train, optimizer=Plain).passed
