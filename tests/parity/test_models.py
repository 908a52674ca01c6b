"""Models of other kinds: batch norm, numbers drawn at random, sparse gradients, complex parameters."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from everyrank.parity import Parted, Unusable
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.parity.small import Batch, Net, compare

pytestmark = pytest.mark.world(2)


class Normed(Net):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.last(torch.tanh(self.norm(self.first(rows))))
        return output


def test_batch_norm_is_named_and_no_tokens_are(process_group: Any) -> None:
    with pytest.raises(Parted) as caught:
        compare(model=Normed)
    text = str(caught.value)
    assert text.startswith("parity: output of `norm` differs")
    assert "token" not in text
    assert "independent of it" not in text
    assert "`norm` normalizes by the rows that it gets: those of a part are not the whole batch's" in text


def test_what_comes_back_through_a_wrong_output_is_not_called_independent(process_group: Any) -> None:
    def doubled(model: Any) -> Any:
        model.first.register_forward_hook(lambda module, given, output: 2 * output)
        model.last.bias.register_hook(lambda gradient: 3 * gradient)
        return DistributedDataParallel(model)

    with pytest.raises(Parted, match=r"^parity: output of `first` is 2 times") as caught:
        compare(parallelize=doubled)
    lines = [line for line in str(caught.value).splitlines() if line.startswith("also")]
    assert lines[0].startswith("also, independent of it: gradient of `last.bias` is 3 times")
    assert lines[1].startswith(
        "also, perhaps by the same cause, as what makes another output has another backward: gra"
    )


def test_two_gradients_of_which_no_more_is_known_than_that_they_differ_are_not_called_alike(
    process_group: Any,
) -> None:
    def odd(model: Any) -> Any:
        model.last.bias.register_hook(lambda gradient: gradient + 0.3 * gradient.roll(1))
        model.first.weight.register_hook(lambda gradient: gradient + gradient.roll(1, 0).square())
        return DistributedDataParallel(model)

    with pytest.raises(
        Parted, match=r"^parity: gradient of `last\.bias` differs by .*; 1 other of its kind differs, too"
    ):
        compare(parallelize=odd)


def test_batch_norm_in_evaluation_normalizes_rows_alike(process_group: Any) -> None:
    def frozen() -> nn.Module:
        model = Normed()
        model.norm.eval()
        return model

    assert compare(model=frozen).passed


class Noisy(Net):
    """It adds noise inside of a module that has no name of dropout."""

    class Noise(nn.Module):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return rows + 0.1 * torch.randn_like(rows)

    def __init__(self) -> None:
        super().__init__()
        self.noise = self.Noise()

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return super().forward(self.noise(rows))


class NoisyItself(Net):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return super().forward(rows + torch.randn_like(rows))


@pytest.mark.parametrize(
    ("model", "text"),
    [(Noisy, "`noise` (Noise) draws random numbers in its forward"), (NoisyItself, "the plain model draws random")],
)
def test_what_draws_random_numbers_is_named(model: type[Net], text: str, process_group: Any) -> None:
    with pytest.raises(Unusable, match=re.escape(text)):
        compare(model=model)


def test_a_loss_that_draws_random_numbers_is_named(process_group: Any) -> None:
    def noisy(model: Any, batch: Batch) -> torch.Tensor:
        found = nn.functional.cross_entropy(model(batch["rows"]), batch["labels"])
        return found * (1 + torch.rand(()))

    with pytest.raises(Unusable, match="loss= draws random numbers"):
        compare(loss=noisy)


# -- sparse gradients ------------------------------------------------------------------------------------------------


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(10, 6, sparse=True), nn.Linear(6, 3)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.last(torch.tanh(self.words(rows)))
        return output


def words(step: int) -> Batch:
    generator = torch.Generator().manual_seed(step)
    return {"rows": torch.randint(10, (8,), generator=generator), "labels": torch.arange(8) % 3}


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def test_sparse_gradients_are_compared(process_group: Any) -> None:
    report = compare(model=Words, batch=words, optimizer=sgd)
    assert report.passed
    assert not report.not_compared
    assert not report.remarks


def test_sparse_gradients_that_are_not_reduced_are_found(process_group: Any) -> None:
    def wrong(model: nn.Module) -> nn.Module:
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["words.weight"])
        return DistributedDataParallel(model)

    with pytest.raises(Parted, match=re.escape("gradient of `words.weight` is not reduced over ranks")) as caught:
        compare(model=Words, batch=words, optimizer=sgd, parallelize=wrong)
    assert "independent of it" not in str(caught.value)


# -- complex parameters ----------------------------------------------------------------------------------------------


class Waves(nn.Module):
    """Each rank's rows go through a complex matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 6, dtype=torch.complex64)
        self.last = nn.Linear(6, 3, dtype=torch.complex64)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.last(torch.tanh(self.first(torch.complex(rows, rows * 0.5))))
        return output.abs()


class Mixed(Waves):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return super().forward(rows) * self.scale


class Rotated(Net):
    """Pairs of features are turned, as rotary embeddings do it, by complex numbers in a buffer."""

    turns: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("turns", torch.polar(torch.ones(2), torch.tensor([0.5, 1.5])))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(rows.float().reshape(-1, 2, 2)) * self.turns
        return super().forward(torch.view_as_real(pairs).flatten(1).type_as(rows))


def test_complex_buffers_keep_their_imaginary_parts(process_group: Any) -> None:
    seen = []

    class Seen(Rotated):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            seen.append(self.turns)
            return super().forward(rows)

    report = compare(model=Seen)
    assert report.passed
    assert not report.remarks
    assert {each.dtype for each in seen} == {torch.complex128, torch.complex64}
    assert all(each.imag.any() for each in seen)


@pytest.mark.parametrize("model", [Waves, Mixed])
@pytest.mark.parametrize("way", [lambda model: Averaged(model), DistributedDataParallel], ids=["by-hand", "ddp"])
def test_complex_parameters_are_compared(way: Any, model: type[nn.Module], process_group: Any) -> None:
    report = compare(model=model, parallelize=way)
    assert report.passed
    assert report.dtypes == ("fp64", "fp32")
    assert not [each for each in report.not_compared if not each.startswith("forward")]


class Averaged(nn.Module):
    """Gradients are averaged by hand, of complex ones all or the real parts alone."""

    def __init__(self, model: nn.Module, only_real: bool = False) -> None:
        super().__init__()
        self.module = model
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: self._mean(gradient, only_real))

    @staticmethod
    def _mean(gradient: torch.Tensor, only_real: bool) -> torch.Tensor:
        total = gradient.clone()
        parts = torch.view_as_real(total) if total.is_complex() else total
        part = parts[..., 0].contiguous() if only_real and total.is_complex() else parts
        torch.distributed.all_reduce(part)
        if part is not parts:
            parts[..., 0] = part
            parts[..., 1] *= 2
        return total / torch.distributed.get_world_size()

    def forward(self, rows: torch.Tensor) -> Any:
        return self.module(rows)


@pytest.mark.parametrize("model", [Waves, Mixed])
def test_imaginary_parts_that_are_not_reduced_are_found(model: type[nn.Module], process_group: Any) -> None:
    with pytest.raises(Parted, match=re.escape("gradient of `last.bias`")):
        compare(model=model, parallelize=lambda model: Averaged(model, only_real=True))


def last_bias_apart(model: nn.Module) -> nn.Module:
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["last.bias"])
    return DistributedDataParallel(model)


def test_a_fault_besides_batch_statistics_is_named_too(process_group: Any) -> None:
    with pytest.raises(Parted) as caught:
        compare(model=Normed, parallelize=last_bias_apart)
    first, *others = caught.value.report.findings
    assert (first.tensor, first.pattern) == ("norm", "batch-statistics")
    assert [(each.kind, each.tensor, each.pattern) for each in others] == [("gradient", "last.bias", "not-reduced")]
    assert others[0].words.endswith("each of ranks 0 and 1 has its own part, with batch norms in .eval()")


def test_the_norms_of_a_model_that_is_put_in_training_stay_out_of_it(process_group: Any) -> None:
    def parallelize(model: nn.Module) -> nn.Module:
        return last_bias_apart(model).train()

    with pytest.raises(Parted) as caught:
        compare(model=Normed, parallelize=parallelize)
    assert [each.tensor for each in caught.value.report.findings] == ["norm", "last.bias"]
