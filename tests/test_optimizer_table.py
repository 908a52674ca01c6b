"""The optimizer table: complete for the installed torch, and true in every entry."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from everyrank.fixtures import optimizers
from everyrank.fixtures.optimizers import TABLE, Invalid, Row, Variant

Trajectory = list[list[torch.Tensor]]

CASES = [pytest.param(row, variant, id=f"{row.name}-{variant.name}") for row, variant in optimizers.every()]
INVALID = [pytest.param(row, entry, id=f"{row.name}-{entry.name}") for row in TABLE for entry in row.invalid]
NAMES = [row.name for row in TABLE]
SHAPES = ((3, 2), (2, 4))
STEPS = 10


def _parameters(dtype: torch.dtype, device: str) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(11)
    return [torch.randn(shape, generator=generator, dtype=dtype).to(device).requires_grad_() for shape in SHAPES]


def _loss(parameters: list[torch.Tensor], step: int) -> torch.Tensor:
    """Return a loss with new targets at every step; not quadratic, or LBFGS would reach its minimum at once."""
    generator = torch.Generator().manual_seed(100 + step)
    total = torch.zeros((), dtype=torch.float64, device=parameters[0].device)
    for scale, parameter in enumerate(parameters, start=1):
        target = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype).to(parameter.device)
        away = (parameter - target).abs().double()
        total = total + (scale * away**2 / (1 + 0.1 * away)).sum()
    return total


def _gradients(parameters: list[torch.Tensor], step: int, sparse: bool) -> torch.Tensor:
    loss = _loss(parameters, step)
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        if sparse:
            # Row 0 is touched by the even steps only.
            gradient = gradient.clone()
            gradient[: step % 2] = 0
            gradient = gradient.to_sparse(1)
        parameter.grad = gradient
    return loss.detach()


def run(
    row: Row,
    variant: Variant,
    steps: int = STEPS,
    dtype: torch.dtype = torch.float64,
    sparse: bool | None = None,
    device: str = "cpu",
    leaves: bool | None = None,
) -> tuple[Trajectory, list[dict[str, Any]]]:
    """Return the parameters before and after each step, and the state after the last step."""
    parameters = _parameters(dtype, device)
    if leaves is None:
        leaves = "non-leaf" not in variant.needs
    if not leaves:
        parameters = [parameter.clone() for parameter in parameters]
        for parameter in parameters:
            parameter.retain_grad()
    optimizer: Any = row.build(parameters, variant)
    seen = [[parameter.detach().clone() for parameter in parameters]]
    sparse = "sparse" in row.needs if sparse is None else sparse

    def closure(step: int) -> torch.Tensor:
        return _gradients(parameters, step, sparse)

    for step in range(steps):
        if "closure" in row.needs:
            optimizer.step(partial(closure, step))
        else:
            closure(step)
            optimizer.step()
        seen.append([parameter.detach().clone() for parameter in parameters])
    state = [
        {key: value.detach().clone() if isinstance(value, torch.Tensor) else value for key, value in entry.items()}
        for entry in (optimizer.state[parameter] for parameter in parameters if parameter in optimizer.state)
    ]
    return seen, state


def _construct(row: Row, parameters: Any, **arguments: Any) -> Any:
    optimizer: Any = row.optimizer
    return optimizer(parameters, **arguments)


def difference(first: Trajectory, second: Trajectory) -> float:
    """Return the largest absolute difference at any step."""
    pairs = [(a, b) for left, right in zip(first, second, strict=True) for a, b in zip(left, right, strict=True)]
    return max(float((a - b).abs().max()) for a, b in pairs)


@pytest.mark.parametrize(("row", "variant"), CASES)
def test_every_variant_moves_every_parameter_in_three_steps(row: Row, variant: Variant) -> None:
    if "cuda" in variant.needs:
        # The need is declared and true: if this fails, it is stale.
        with pytest.raises((AssertionError, RuntimeError), match="apturable"):
            run(row, variant, steps=3)
        return
    seen, _ = run(row, variant, steps=3)
    for before, after in zip(seen[0], seen[-1], strict=True):
        assert after.isfinite().all()
        assert (before - after).abs().max() > 1e-4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="capturable is refused on CPU tensors")
@pytest.mark.parametrize(("row", "variant"), [case for case in CASES if "cuda" in case.values[1].needs])  # type: ignore[union-attr]
def test_a_variant_that_needs_cuda_has_its_effect_there(row: Row, variant: Variant) -> None:
    ours, _ = run(row, variant, device="cuda")
    theirs, _ = run(row, row.variant(variant.against), device="cuda")
    assert difference(ours, theirs) < variant.within


@pytest.mark.parametrize(("row", "variant"), [case for case in CASES if "non-leaf" in case.values[1].needs])  # type: ignore[union-attr]
def test_a_variant_that_needs_non_leaf_parameters_refuses_leaves(row: Row, variant: Variant) -> None:
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        run(row, variant, steps=1, leaves=True)


@pytest.mark.parametrize(("row", "variant"), CASES)
def test_a_variant_has_the_declared_effect_within_ten_steps(row: Row, variant: Variant) -> None:
    if variant.name == "defaults" or "cuda" in variant.needs:
        return
    against = row.variant(variant.against)
    ours, our_state = run(row, variant)
    theirs, their_state = run(row, against)
    apart = difference(ours, theirs)
    if variant.effect == "parameters":
        assert apart > 1e-5, f"no effect: {apart}"
        return
    assert variant.reason
    assert apart < variant.within, f"an effect: {apart}"
    if variant.effect == "state":
        assert any(
            not torch.equal(torch.as_tensor(mine[key]), torch.as_tensor(other[key]))
            for mine, other in zip(our_state, their_state, strict=True)
            for key in mine
        )


@pytest.mark.parametrize(("row", "variant"), [case for case in CASES if case.values[1].group_arguments])  # type: ignore[union-attr]
def test_each_group_has_its_own_values(row: Row, variant: Variant) -> None:
    """Giving all parameters the values of one group must differ from the groups: otherwise they prove nothing."""
    grouped, _ = run(row, variant)
    for arguments in variant.make_groups():
        alone, _ = run(row, Variant("alone", arguments))
        assert difference(grouped, alone) > 1e-5


@pytest.mark.parametrize(("row", "invalid"), INVALID)
def test_invalid_arguments_raise_the_error_of_their_row(row: Row, invalid: Invalid) -> None:
    with pytest.raises(invalid.error, match=invalid.match) as caught:
        _construct(row, _parameters(torch.float64, "cpu"), **invalid.make())
    assert caught.type is invalid.error


@pytest.mark.parametrize("row", TABLE, ids=NAMES)
def test_no_groups_is_declared_if_groups_are_refused(row: Row) -> None:
    groups = [{"params": [parameter]} for parameter in _parameters(torch.float64, "cpu")]
    if "no-groups" in row.needs:
        with pytest.raises(ValueError, match="doesn't support per-parameter options"):
            _construct(row, groups)
    else:
        assert len(_construct(row, groups).param_groups) == 2
        assert any(variant.group_arguments for variant in row.variants)


@pytest.mark.parametrize("row", TABLE, ids=NAMES)
def test_two_dimensional_is_declared_if_other_shapes_are_refused(row: Row) -> None:
    vector = [torch.zeros(3, requires_grad=True)]
    if "2d" in row.needs:
        with pytest.raises(ValueError, match="2D"):
            _construct(row, vector)
    else:
        _construct(row, vector)


@pytest.mark.parametrize("row", TABLE, ids=NAMES)
def test_whole_tensor_is_declared_if_a_shard_cannot_be_stepped_alone(row: Row) -> None:
    """Step the rows of each matrix separately: for element-wise optimizers alone this equals stepping the matrix."""
    if "closure" in row.needs:
        assert "whole-tensor" in row.needs
        return
    whole, halves = _parameters(torch.float64, "cpu"), _parameters(torch.float64, "cpu")
    shards = [piece.detach().clone().requires_grad_() for parameter in halves for piece in parameter.split(1)]
    of_wholes, of_shards = _construct(row, whole), _construct(row, shards)
    for step in range(3):
        _gradients(whole, step, sparse=False)
        pieces = [piece for parameter in whole for piece in parameter.grad.split(1)]  # type: ignore[union-attr]
        for shard, piece in zip(shards, pieces, strict=True):
            shard.grad = piece.clone().to_sparse(1) if "sparse" in row.needs else piece.clone()
        if "sparse" in row.needs:
            for parameter in whole:
                parameter.grad = parameter.grad.to_sparse(1)  # type: ignore[union-attr]
        of_wholes.step()
        of_shards.step()
        # The next gradients must not depend on the difference that this step made.
        joined = torch.cat([shard.detach().reshape(-1) for shard in shards])
        apart = (joined - torch.cat([parameter.detach().reshape(-1) for parameter in whole])).abs().max()
        assert (apart > 1e-6) == ("whole-tensor" in row.needs)
        if "whole-tensor" in row.needs:
            return


def _takes(attempt: Callable[[], Any]) -> bool:
    try:
        attempt()
    except (RuntimeError, ValueError, TypeError, NotImplementedError):
        return False
    return True


@pytest.mark.parametrize(("row", "variant"), CASES)
def test_complex_parameters_and_sparse_gradients_are_taken_as_declared(row: Row, variant: Variant) -> None:
    if variant.needs:
        return
    for ability, arguments in (("complex", {"dtype": torch.complex128}), ("sparse", {"sparse": True})):
        declared = ability in row.takes - variant.refuses

        def attempt(arguments: dict[str, Any] = arguments) -> None:
            # Invariants are checked, since torch warns once a process if nobody chose.
            with torch.sparse.check_sparse_tensor_invariants():
                run(row, variant, steps=2, **arguments)

        assert _takes(attempt) == declared, f"{ability}: declared {declared}"


class Still(torch.optim.SGD):
    """An optimizer of another project."""


def _optimizer_classes() -> Iterator[type[torch.optim.Optimizer]]:
    for value in vars(torch.optim).values():
        if inspect.isclass(value) and issubclass(value, torch.optim.Optimizer) and value is not torch.optim.Optimizer:
            yield value


def test_every_optimizer_of_this_torch_has_a_row() -> None:
    missing = {cls.__name__ for cls in _optimizer_classes()} - set(NAMES)
    assert not missing, f"torch {torch.__version__} has optimizers without a row: {sorted(missing)}"


def test_a_new_optimizer_in_torch_turns_the_table_red(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim, "Still", Still, raising=False)
    with pytest.raises(AssertionError, match=r"optimizers without a row: \['Still'\]"):
        test_every_optimizer_of_this_torch_has_a_row()


@pytest.mark.parametrize("row", TABLE, ids=NAMES)
def test_every_constructor_argument_of_this_torch_is_used_by_a_variant(row: Row) -> None:
    taken = list(inspect.signature(row.optimizer).parameters)
    assert taken.pop(0) == "params"
    used = frozenset[str]().union(*(variant.argument_names for variant in row.variants))
    assert not set(taken) - used, f"{row.name}: no variant uses {sorted(set(taken) - used)}"


def test_a_new_argument_in_torch_turns_the_table_red() -> None:
    class Grown(torch.optim.SGD):
        def __init__(self, params: Any, cautious: bool = False, **arguments: Any) -> None: ...

    with pytest.raises(AssertionError, match=r"Grown: no variant uses .*'cautious'"):
        test_every_constructor_argument_of_this_torch_is_used_by_a_variant(Row(Grown, optimizers.row("SGD").variants))


def test_names_are_lower_case_and_hold_no_values() -> None:
    entries: list[Variant | Invalid] = []
    for row in TABLE:
        entries += [*row.variants, *row.invalid]
    names = [entry.name for entry in entries]
    assert [name for name in names if not re.fullmatch(r"[a-z]+\d?(-[a-z]+\d?)*", name)] == []


def test_arguments_are_fresh_for_every_run() -> None:
    variant = optimizers.row("Adam").variant("tensor-lr")
    assert variant.make()["lr"] is not variant.make()["lr"]


def test_groups_are_dealt_out_in_turn() -> None:
    parameters = [torch.zeros(1, requires_grad=True) for _ in range(5)]
    first, second = optimizers.row("SGD").variant("groups").split(parameters)
    assert [id(parameter) for parameter in first["params"]] == [id(parameters[i]) for i in (0, 2, 4)]
    assert [id(parameter) for parameter in second["params"]] == [id(parameters[i]) for i in (1, 3)]
    assert len(optimizers.row("SGD").variant("groups").split(parameters[:1])) == 1


def test_a_registered_row_appears_everywhere_and_goes_again() -> None:
    before = optimizers.counts()
    row = optimizers.register(Row(Still, (Variant("defaults"),)))
    try:
        assert optimizers.row("Still") is row
        assert row in [candidate for candidate, _ in optimizers.every()]
        assert optimizers.counts()["optimizers"] == before["optimizers"] + 1
        with pytest.raises(ValueError, match="has a row 'Still' already"):
            optimizers.register(row)
    finally:
        optimizers.unregister("Still")
    assert optimizers.counts() == before
    with pytest.raises(KeyError, match="no row 'Still'"):
        optimizers.row("Still")


def test_excluding_a_need_leaves_out_every_case_with_it() -> None:
    left = list(optimizers.every(needs_excluded={"closure", "cuda"}))
    assert left
    assert not any((row.needs | variant.needs) & {"closure", "cuda"} for row, variant in left)
    with pytest.raises(ValueError, match="no such need"):
        list(optimizers.every(needs_excluded={"closures"}))


def test_a_row_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(ValueError, match="two entries named 'defaults'"):
        Row(Still, (Variant("defaults"), Variant("defaults")))
    with pytest.raises(ValueError, match=r"needs \['gpu'\], which nothing provides"):
        Row(Still, (Variant("defaults", needs=frozenset({"gpu"})),))
    with pytest.raises(ValueError, match="compared with 'momentum', which is not there"):
        Row(Still, (Variant("defaults"), Variant("nesterov", against="momentum")))


def test_the_counts_are_stated() -> None:
    """Print the counts, for -rP. The table may grow; it shrinks only on an older torch."""
    counts = optimizers.counts()
    print(
        f"\noptimizer table, torch {torch.__version__}: "
        + ", ".join(f"{count} {noun}" for noun, count in counts.items())
    )
    for row in TABLE:
        needs = ", ".join(sorted(row.needs)) or "-"
        print(
            f"  {row.name:<11} {len(row.variants):>3} variants {len(row.invalid):>3} invalid arguments, needs {needs}"
        )
    assert counts["optimizers"] == len(list(_optimizer_classes()))
    if torch.__version__ >= "2.13":
        assert (counts["variants"], counts["invalid arguments"]) == (263, 141)
