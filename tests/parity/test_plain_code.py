"""What correct code of users does, and nothing says that it must not: parity is silent on it."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest
import torch
import torch.distributed as dist
from everyrank.parity import Parted, Unusable
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.parity.small import Batch, Net, compare, loss, over_ranks, own_rows

pytestmark = pytest.mark.world(2)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.1)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.5)


def clipped(model: nn.Module, limit: float, epsilon: float = 1e-6) -> torch.Tensor:
    """Clip by hand, and return the norm."""
    gradients = [each.grad for each in model.parameters() if each.grad is not None]
    norm = torch.sqrt(torch.stack([(each**2).sum() for each in gradients]).sum())
    for each in gradients:
        each.mul_((limit / (norm + epsilon)).clamp(max=1.0))
    return norm


# -- what a rank has not ---------------------------------------------------------------------------------------------


class Nothing(nn.Module):
    """What a rank has that holds no parameter."""


def test_a_rank_that_holds_no_parameter_needs_no_stand_in(process_group: Any) -> None:
    def step(model: Any, optimizer: Any, batch: Batch) -> Any:
        found = norm = None
        if dist.get_rank() == 0:
            found = loss(model, batch)
            found.backward()
            norm = clipped(model, 0.01)
        optimizer.step()
        optimizer.zero_grad()
        return found, norm

    def parallelize(model: nn.Module) -> nn.Module:
        return model if dist.get_rank() == 0 else Nothing()

    assert compare(parallelize=parallelize, step=step, clip=0.01, optimizer=adamw).passed


class TwoHeads(Net):
    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Linear(6, 2)

    def forward(self, rows: torch.Tensor) -> Any:
        hidden = torch.tanh(self.first(rows))
        return self.last(hidden), self.second(hidden)


@pytest.mark.parametrize("clip", [None, 0.01])
def test_an_output_that_the_loss_does_not_use(clip: float | None, process_group: Any) -> None:
    def parallelize(model: nn.Module) -> nn.Module:
        return DistributedDataParallel(model, find_unused_parameters=True)

    def of_the_first(model: Any, batch: Batch) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch["rows"])[0], batch["labels"])

    assert compare(model=TwoHeads, parallelize=parallelize, loss=of_the_first, clip=clip).passed


class Unused(Net):
    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.ones(3))


def test_a_parameter_without_a_gradient(process_group: Any) -> None:
    def parallelize(model: nn.Module) -> nn.Module:
        return DistributedDataParallel(model, find_unused_parameters=True)

    assert compare(model=Unused, parallelize=parallelize).passed


# -- clips by hand ---------------------------------------------------------------------------------------------------


def averaged(model: nn.Module) -> None:
    for each in model.parameters():
        dist.all_reduce(each.grad)
        each.grad /= dist.get_world_size()


@pytest.mark.parametrize("optimizer", [adamw, sgd])
@pytest.mark.parametrize("returned", ["norm", "rounded norm", "no norm"])
@pytest.mark.parametrize("epsilon", [0.0, 1e-8, 1e-6])
def test_a_clip_by_hand_may_add_what_it_likes_to_the_norm(
    epsilon: float, returned: str, optimizer: Any, process_group: Any
) -> None:
    def step(model: Any, optimizer: Any, batch: Batch) -> Any:
        found = loss(model, own_rows(batch))
        found.backward()
        averaged(model)
        norm = clipped(model, 0.2, epsilon)
        optimizer.step()
        optimizer.zero_grad()
        found = over_ranks(found)
        if returned == "no norm":
            return found
        return found, norm if returned == "norm" else torch.tensor(float(norm), dtype=torch.float32)

    assert compare(parallelize=lambda model: model, step=step, clip=0.2, optimizer=optimizer).passed


def test_a_number_may_be_rounded_for_a_log(process_group: Any) -> None:
    def step(model: Any, optimizer: Any, batch: Batch) -> torch.Tensor:
        found = loss(model, own_rows(batch))
        found.backward()
        averaged(model)
        optimizer.step()
        optimizer.zero_grad()
        return over_ranks(torch.tensor(found.item(), dtype=torch.float32))

    assert compare(parallelize=lambda model: model, step=step).passed


def test_a_clip_by_hand_that_nobody_has_named_is_asked_for(process_group: Any) -> None:
    def step(model: Any, optimizer: Any, batch: Batch) -> torch.Tensor:
        found = loss(model, own_rows(batch))
        found.backward()
        averaged(model)
        clipped(model, 0.01)
        optimizer.step()
        optimizer.zero_grad()
        return over_ranks(found)

    with pytest.raises(
        Parted,
        match=r"^parity: .* as every gradient: .* or it clips by hand to a norm of 0\.01: then pass clip=0\.01 ",
    ):
        compare(parallelize=lambda model: model, step=step)


# -- tables of the whole batch ---------------------------------------------------------------------------------------


def _table() -> torch.Tensor:
    return torch.linspace(0.5, 1.5, 24).view(8, 3)


def weighted(model: Any, batch: Batch, rows: slice = slice(None)) -> torch.Tensor:
    """A loss with a table that has the whole batch's rows."""
    output = model(batch["rows"]) * _table()[rows].to(batch["rows"])
    return nn.functional.cross_entropy(output, batch["labels"])


def on_own_rows(model: Any, optimizer: Any, batch: Batch, forgotten: str = "") -> torch.Tensor:
    mine = slice(4 * dist.get_rank(), 4 * dist.get_rank() + 4)
    found = weighted(model, {name: each[mine] for name, each in batch.items()}, mine)
    found.backward()
    for name, each in model.named_parameters():
        if name != forgotten:
            dist.all_reduce(each.grad)
            each.grad /= dist.get_world_size()
    optimizer.step()
    optimizer.zero_grad()
    return found.detach()


def test_a_step_may_know_a_table_of_the_whole_batch(process_group: Any) -> None:
    assert compare(parallelize=lambda model: model, loss=weighted, step=on_own_rows).passed


def test_a_fault_beside_such_a_table_is_found(process_group: Any) -> None:
    step = functools.partial(on_own_rows, forgotten="last.bias")
    with pytest.raises(Parted, match=r"^parity: gradient of `last\.bias` is not reduced over ranks"):
        compare(parallelize=lambda model: model, loss=weighted, step=step)


def test_the_plain_loop_needs_parts_of_a_batch(process_group: Any) -> None:
    with pytest.raises(Unusable, match=r"takes the whole batch, and no part of its rows, .*: RuntimeError: "):
        compare(loss=weighted)


# -- the loss that a step returns ------------------------------------------------------------------------------------


def test_a_loss_that_is_the_mean_over_own_rows_is_named_as_that(process_group: Any) -> None:
    def step(model: Any, optimizer: Any, batch: Batch) -> torch.Tensor:
        """Rank 0 has six of eight rows, and each rank returns what it would log."""
        part = slice(6) if dist.get_rank() == 0 else slice(6, 8)
        found = loss(model, {name: each[part] for name, each in batch.items()})
        (found * (part.stop - (part.start or 0)) / 4).backward()
        optimizer.step()
        optimizer.zero_grad()
        return found.detach()

    with pytest.raises(Parted) as caught:
        compare(parallelize=DistributedDataParallel, step=step)
    first = str(caught.value).splitlines()[0]
    assert re.match(
        r"parity: the loss is [\d.]+ and [\d.]+ instead of 1\.\d+, while all that is trained is the", first
    )
    assert "return the mean over the whole batch, the rank's share of it" in first
    assert "also" not in str(caught.value)


def test_gradients_beside_a_wrong_loss_are_not_called_independent(process_group: Any) -> None:
    def step(model: Any, optimizer: Any, batch: Batch) -> torch.Tensor:
        mine = own_rows(batch)
        found = nn.functional.cross_entropy(model(mine["rows"]), mine["labels"], label_smoothing=0.1)
        found.backward()
        optimizer.step()
        optimizer.zero_grad()
        return over_ranks(found)

    with pytest.raises(Parted) as caught:
        compare(parallelize=DistributedDataParallel, step=step)
    assert caught.value.report.findings[0].kind == "loss"
    assert "independent" not in str(caught.value)
    assert "also, perhaps by the same cause, as another loss has other gradients: gradient of" in str(caught.value)


# -- what cannot be compared is one sentence -------------------------------------------------------------------------


def test_a_plain_model_without_values_is_refused(process_group: Any) -> None:
    def model() -> nn.Module:
        with torch.device("meta"):
            return Net()

    with pytest.raises(
        Unusable, match=r"^model\(\) makes first\.weight on the meta device, where it has no values: "
    ):
        compare(model=model)


def test_a_parallel_model_without_values_is_refused(process_group: Any) -> None:
    with pytest.raises(
        Unusable, match=r"^parallelize leaves module\.first\.weight on the meta device, .*: pass load="
    ):
        compare(parallelize=lambda model: DistributedDataParallel(model).to("meta"))


def test_a_model_made_without_values_is_compared_once_load_gives_them(process_group: Any) -> None:
    def load(model: Any, whole: dict[str, torch.Tensor]) -> None:
        model.load_state_dict(whole, assign=True)
        for each in model.parameters():
            each.register_hook(over_ranks)

    assert compare(parallelize=lambda model: model.to("meta"), load=load).passed


class DropsClasses(Net):
    """A DiT's labels, some of which are left out at random while it trains."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        kept = torch.rand(len(rows)) > 0.1 if self.training else torch.ones(len(rows), dtype=torch.bool)
        return super().forward(torch.where(kept[:, None], rows, 0.0))


def test_a_model_that_draws_which_classes_it_drops_is_refused(process_group: Any) -> None:
    with pytest.raises(Unusable, match="the plain model draws random numbers in its forward"):
        compare(model=DropsClasses)
