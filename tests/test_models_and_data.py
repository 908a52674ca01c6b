"""Models and data: deterministic, different on every rank, and with the properties that they declare."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from everyrank.fixtures import data
from everyrank.fixtures.models import MODELS, PROPERTIES, Model
from torch import nn

ALL = [pytest.param(model, id=model.name) for model in MODELS.values()]
DTYPES = [torch.float64, torch.float32, torch.bfloat16]


def _trained(model: Model, dtype: torch.dtype = torch.float64) -> nn.Module:
    module = model.build(dtype=dtype)
    data.loss(module, data.batch_for(model, seed=0, rank=0, step=0, dtype=dtype)).backward()
    return module


def _trainable(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


HOLDS: dict[str, Callable[[nn.Module], bool]] = {
    "0-dim": lambda m: any(p.dim() == 0 for p in _trainable(m)),
    "buffers": lambda m: len({b.dtype for b in m.buffers()}) >= 4,
    "complex": lambda m: any(p.is_complex() for p in m.parameters()),
    "empty": lambda m: any(p.numel() == 0 for p in _trainable(m)),
    "equal-shapes": lambda m: len(_trainable(m)) > 1 and len({p.shape for p in _trainable(m)}) == 1,
    "few-rows": lambda m: any(p.dim() == 2 and p.shape[0] == 1 for p in m.parameters()),
    "frozen": lambda m: any(not p.requires_grad for p in m.parameters()),
    "large": lambda m: any(p.numel() * p.element_size() > 25 * 2**20 for p in m.parameters()),
    "matrices": lambda m: all(p.dim() == 2 and (p.grad is None or not p.grad.is_sparse) for p in m.parameters()),
    "mixed-dtypes": lambda m: len({p.dtype for p in _trainable(m)}) > 1,
    "non-contiguous": lambda m: any(not p.is_contiguous() for p in m.parameters()),
    "partly-sparse": lambda m: len({p.grad.is_sparse for p in m.parameters() if p.grad is not None}) == 2,
    "optional": lambda m: hasattr(m, "skip"),
    "sparse": lambda m: all(p.grad is not None and p.grad.is_sparse for p in m.parameters()),
    "tied": lambda m: len(list(m.named_parameters())) < len(list(m.named_parameters(remove_duplicate=False))),
    "unused": lambda m: any(p.grad is None for p in _trainable(m)),
    "views": lambda m: _storages(m) < len([p for p in m.parameters() if p.numel()]),
}


def _storages(module: nn.Module) -> int:
    return len({p.untyped_storage().data_ptr() for p in module.parameters() if p.numel()})


def test_every_property_is_checked_and_some_model_has_it() -> None:
    assert set(HOLDS) == set(PROPERTIES) == set().union(*(model.properties for model in MODELS.values()))


@pytest.mark.parametrize("model", ALL)
def test_a_model_has_the_declared_properties_and_no_others(model: Model) -> None:
    module = _trained(model)
    assert {name for name, holds in HOLDS.items() if holds(module)} == model.properties


@pytest.mark.parametrize("model", ALL)
def test_a_model_says_what_it_finds(model: Model) -> None:
    assert model.finds.startswith("Finds ")
    assert "\n" not in model.finds


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("model", ALL)
def test_a_model_is_the_same_for_the_same_seed_and_another_for_another(model: Model, dtype: torch.dtype) -> None:
    if dtype == torch.bfloat16 and "complex" in model.properties:
        return  # there is no complex number of two bfloat16
    torch.manual_seed(1)
    first = model.build(5, dtype)
    torch.manual_seed(2)
    same, other = model.build(5, dtype), model.build(6, dtype)
    assert all(torch.equal(a, b) for a, b in zip(_tensors(first), _tensors(same), strict=True))
    parameters = zip(first.parameters(), other.parameters(), strict=True)
    assert all(not torch.equal(a, b) for a, b in parameters if a.numel())


@pytest.mark.parametrize("model", ALL)
def test_a_model_in_fp32_is_the_rounding_of_the_model_in_fp64(model: Model) -> None:
    if "mixed-dtypes" in model.properties:
        return
    for wide, narrow in zip(model.build().parameters(), model.build(dtype=torch.float32).parameters(), strict=True):
        assert torch.equal(wide.to(narrow.dtype), narrow)


@pytest.mark.parametrize("model", ALL)
def test_building_a_model_leaves_the_random_state_alone(model: Model) -> None:
    before = torch.get_rng_state()
    model.build(3)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("model", ALL)
def test_every_used_parameter_gets_a_gradient_that_is_not_zero(model: Model) -> None:
    for name, parameter in _trained(model).named_parameters():
        if not parameter.numel() or not parameter.requires_grad or parameter.grad is None:
            continue
        assert parameter.grad.to_dense().abs().max() > 1e-4, name


def test_unused_parameters_lie_before_between_and_after_used_parameters() -> None:
    used = [parameter.grad is not None for parameter in _trained(MODELS["unused"]).parameters()]
    assert not used[0]
    assert not used[-1]
    assert [key for key, _ in itertools.groupby(used)] == [False, True, False, True, False]


def test_the_optional_branch_goes_unused_if_skip_is_set() -> None:
    model = MODELS["optional"]
    module = model.build()
    module.skip = True  # type: ignore[assignment]
    data.loss(module, data.batch_for(model, 0, 0, 0)).backward()
    assert [name for name, p in module.named_parameters() if p.grad is None] == ["branch.weight", "branch.bias"]


def test_sparse_gradients_repeat_rows_out_of_order_and_share_them_between_ranks() -> None:
    model = MODELS["sparse-embedding"]
    rows = []
    for rank in (0, 1, 2):
        module = model.build()
        data.loss(module, data.batch_for(model, seed=5, rank=rank, step=1)).backward()
        gradient = module.get_parameter("words.weight").grad
        assert gradient is not None
        rows.append(gradient._indices()[0].tolist())
    assert all(len(set(touched)) < len(touched) for touched in rows)
    assert all(touched != sorted(touched) for touched in rows)
    assert set(rows[0]) & set(rows[1]) & set(rows[2])


def test_no_two_parameters_of_the_plain_model_have_one_shape() -> None:
    shapes = [tuple(parameter.shape) for parameter in MODELS["plain"].build().parameters()]
    assert len(set(shapes)) == len(shapes)


@pytest.mark.parametrize("tokens", [False, True], ids=["features", "tokens"])
def test_a_batch_is_the_same_for_the_same_seed_rank_and_step(tokens: bool) -> None:
    torch.manual_seed(1)
    first = data.batch(1, 2, 3, tokens=tokens)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert all(torch.equal(a, b) for a, b in zip(first, data.batch(1, 2, 3, tokens=tokens), strict=True))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("tokens", [False, True], ids=["features", "tokens"])
def test_no_two_batches_are_equal(tokens: bool) -> None:
    """Compare over seeds, ranks and steps, also those with equal sums."""
    arguments = list(itertools.product(range(3), range(8), range(10)))
    batches = [data.batch(seed, rank, step, tokens=tokens) for seed, rank, step in arguments]
    assert len({tuple(map(tuple, batch.targets.tolist())) for batch in batches}) == len(arguments)
    assert len({tuple(map(tuple, batch.inputs.tolist())) for batch in batches}) == len(arguments)


@pytest.mark.parametrize("model", ALL)
def test_gradients_differ_on_every_rank(model: Model) -> None:
    """They differ clearly: otherwise a rank that is left out or counted twice would not show."""
    flat = []
    for rank in range(4):
        module = model.build()
        data.loss(module, data.batch_for(model, seed=0, rank=rank, step=0)).backward()
        used = [p.grad.to_dense().reshape(-1) for p in module.parameters() if p.grad is not None]
        flat.append(torch.cat([torch.view_as_real(g).reshape(-1) if g.is_complex() else g.double() for g in used]))
    for gradient, other in itertools.combinations(flat, 2):
        assert (gradient - other).norm() > 0.05 * gradient.norm()


@pytest.mark.parametrize("tokens", [False, True], ids=["features", "tokens"])
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_whole_batch_is_all_parts_in_rank_order(size: int, tokens: bool) -> None:
    whole = data.whole_batch(7, 2, size, tokens=tokens)
    assert len(whole.inputs) == len(whole.targets) == size * data.ROWS
    for rank in range(size):
        part = data.batch(7, rank, 2, tokens=tokens)
        rows = slice(rank * data.ROWS, (rank + 1) * data.ROWS)
        assert torch.equal(whole.inputs[rows], part.inputs)
        assert torch.equal(whole.targets[rows], part.targets)


@pytest.mark.parametrize("model", ALL)
def test_the_mean_of_the_parts_gradients_is_the_gradient_of_the_whole(model: Model) -> None:
    tokens = "sparse" in model.properties
    whole = model.build()
    data.loss(whole, data.whole_batch(3, 1, 3, tokens=tokens)).backward()
    parts = model.build()
    for rank in range(3):
        (data.loss(parts, data.batch_for(model, 3, rank, 1)) / 3).backward()
    tolerance = 1e-6 if model.name == "mixed-dtypes" else 1e-12
    for expected, actual in zip(whole.parameters(), parts.parameters(), strict=True):
        assert (expected.grad is None) == (actual.grad is None)
        if expected.grad is not None and actual.grad is not None:
            torch.testing.assert_close(
                actual.grad.to_dense(), expected.grad.to_dense(), rtol=tolerance, atol=tolerance
            )


def _tensors(module: nn.Module) -> list[torch.Tensor]:
    return [*module.parameters(), *module.buffers()]
