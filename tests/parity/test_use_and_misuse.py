"""What parity makes of unusual models, and what it says if it cannot compare."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.distributed as dist
from everyrank.parity import Parted, Unusable
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from tests.parity.small import Net, batch, compare, loss

WORLD = pytest.mark.world(2)


# -- models that work ------------------------------------------------------------------------------------------------


class Twice(Net):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.last(torch.tanh(self.first(rows)) + torch.tanh(self.first(rows * 2)))
        return output


class InPlace(Net):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.last(self.first(rows).relu_())
        return output


class Recomputed(Net):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.last(
            checkpoint(lambda rows: torch.tanh(self.first(rows)), rows, use_reentrant=False)
        )
        return output


class CastsInside(Net):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.last(
            torch.softmax(self.first(rows).float(), -1, dtype=torch.float32).to(rows.dtype)
        )
        return output


class Compiled(Net):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.compile(self.first, backend="eager")  # type: ignore[assignment]


@WORLD
@pytest.mark.parametrize("model", [Net, Twice, InPlace, Recomputed, CastsInside, Compiled])
def test_an_unusual_model_is_compared_whole(model: type[Net], process_group: Any) -> None:
    report = compare(model=model)
    assert report.passed
    assert not [name for name in report.not_compared if not name.startswith("forward first")]


class Wrapper(nn.Module):
    """A wrapper of the user's own, with the plain model under a name of its own."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inner = model
        for parameter in model.parameters():
            parameter.register_hook(self._mean)

    def _mean(self, gradient: torch.Tensor) -> torch.Tensor:
        total = gradient.clone()
        dist.all_reduce(total)
        return total / dist.get_world_size()

    def forward(self, rows: torch.Tensor) -> Any:
        return self.inner(rows)


@WORLD
def test_a_model_inside_of_a_wrapper_of_the_users_is_compared_whole(process_group: Any) -> None:
    assert not compare(parallelize=Wrapper).not_compared


@WORLD
def test_a_model_may_be_given_in_place_of_a_function(process_group: Any) -> None:
    torch.manual_seed(3)
    assert compare(model=Net()).passed


@WORLD
def test_code_that_takes_no_fp64_is_compared_in_its_own_dtype(process_group: Any) -> None:
    class Narrow(Net):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            if rows.dtype == torch.float64:
                raise RuntimeError("\"narrow\" not implemented for 'Double'")
            return super().forward(rows)

    report = compare(model=Narrow)
    assert report.dtypes == ("fp32",)
    (remark,) = report.remarks
    assert remark.startswith(
        "not in fp64, which the plain model does not take: RuntimeError: \"narrow\" not implemented for 'Double', "
        "at tests/parity/test_use_and_misuse.py:"
    )


@WORLD
def test_a_step_of_the_users_and_a_clip_that_is_found_out(process_group: Any) -> None:
    def step(model: Any, optimizer: Any, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        mine = {name: value.chunk(2)[dist.get_rank()] for name, value in batch.items()}
        found = loss(model, mine)
        found.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        optimizer.zero_grad()
        return found, norm

    assert compare(step=step, optimizer=lambda params: torch.optim.AdamW(params, lr=0.1)).passed


@WORLD
def test_what_is_skipped_is_not_compared(process_group: Any) -> None:
    def wrong(model: nn.Module) -> nn.Module:
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["last.bias"])
        return DistributedDataParallel(model)

    with pytest.raises(Parted, match=re.escape("parity: gradient of `last.bias` is not reduced over ranks")):
        compare(parallelize=wrong)
    assert compare(parallelize=wrong, skip=["last.bias"], steps=1).passed


# -- what it says if it cannot ---------------------------------------------------------------------------------------


def test_without_a_process_group_the_message_names_the_fixture() -> None:
    with pytest.raises(Unusable, match="ask for the fixture process_group in a test"):
        compare()


class Drops(Net):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.drop(super().forward(rows))
        return output


def _other_each_time() -> nn.Module:
    model = Net()
    _other_each_time.built += 1.0  # type: ignore[attr-defined]
    nn.init.constant_(model.last.bias, _other_each_time.built)  # type: ignore[attr-defined]
    return model


_other_each_time.built = 0.0  # type: ignore[attr-defined]


def _other_on_each_rank() -> nn.Module:
    model = Net()
    nn.init.constant_(model.last.bias, dist.get_rank())
    return model


MISUSE: dict[str, tuple[dict[str, Any], str]] = {
    "a model that drops at random": ({"model": Drops}, "the plain model drops at random (drop)"),
    "another model each time": ({"model": _other_each_time}, "model() returns other values of last.bias each time"),
    "another model on each rank": (
        {"model": _other_on_each_rank},
        "model() returns other values of last.bias on rank",
    ),
    "a function that returns no model": ({"model": lambda: 3}, "model() returned int"),
    "no model": ({"model": "net"}, "model= is str: pass a function that builds the plain model"),
    "no batch": ({"batch": None}, "batch= is NoneType: pass a function"),
    "a loss of each row": (
        {"loss": lambda model, batch: model(batch["rows"])},
        "loss(model, batch) returned a tensor of shape (8, 3): return its mean",
    ),
    "a loss that is a number": ({"loss": lambda model, batch: loss(model, batch).item()}, "returned float"),
    "a loss without a gradient": ({"loss": lambda model, batch: loss(model, batch).detach()}, "without a gradient"),
    "rows that cannot be cut": (
        {"batch": lambda step: batch(step, 7)},
        "the batch has 7 rows, which cannot be cut for 2 ranks",
    ),
    "parallelize without a return": ({"parallelize": lambda model: None}, "parallelize returned None"),
    "parallelize with a string": ({"parallelize": lambda model: "x"}, "parallelize returned str: return a module"),
    "an optimizer that is not the plain model's": (
        {"parallelize": lambda model: (DistributedDataParallel(model), torch.optim.SGD(model.parameters(), lr=1.0))},
        "parallelize returned an optimizer of its own, and the plain model would train with another: pass optimizer=",
    ),
    "parallelize that does nothing": ({"parallelize": lambda model: model}, "parallelize left the model as it is"),
    "a step that does not step": ({"step": lambda *_: None}, "did not call optimizer.step()"),
    "no steps": ({"steps": 0}, "steps= is 0: pass a whole number, 1 or more"),
    "microbatches as a text": ({"microbatches": "2"}, "microbatches= is '2': pass a whole number, 1 or more"),
    "a percentage": ({"compared": 90}, "compared= is 90: pass the part that must be compared, from 0 to 1"),
    "a pattern that is no list": ({"skip": "last.*"}, "skip= is 'last.*': pass a list, ['last.*']"),
    "a dtype that is no list": ({"dtypes": torch.float32}, "dtypes= is torch.float32: pass a list, [torch.float32]"),
    "another split": ({"split": "columns"}, 'split= is "columns"'),
    "weights of another model": (
        {"parallelize": lambda model: DistributedDataParallel(nn.Sequential(nn.Linear(4, 3)))},
        "only 0 of 4 parameters can be compared",
    ),
}


@WORLD
@pytest.mark.parametrize("case", MISUSE)
def test_misuse_is_one_sentence(case: str, process_group: Any) -> None:
    changed, message = MISUSE[case]
    with pytest.raises(Unusable, match=re.escape(message)):
        compare(**changed)


@WORLD
def test_misuse_ends_at_the_call(process_group: Any) -> None:
    with pytest.raises(Unusable) as caught:
        compare(parallelize=lambda model: None)
    assert caught.traceback[-1].name == "parity"


@WORLD
def test_a_loss_that_is_a_mean_over_unequal_numbers_is_named_as_that(process_group: Any) -> None:
    def over_what_counts(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch["rows"]), batch["labels"], ignore_index=0)

    with pytest.raises(Parted, match="as with a mean over unequal numbers of tokens: return the sum and"):
        compare(loss=over_what_counts)
