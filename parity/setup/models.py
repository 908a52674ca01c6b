"""The models of a run: what the user's code makes of a fresh plain model, and what it is compared with."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from everyrank.parity.errors import Unusable
from everyrank.parity.setup.alone import FailedAlone, in_lone_world
from everyrank.parity.setup.given import SEED, Setup, own_dtype, seed
from everyrank.parity.setup.optimizers import Optimizers, optimizers_of, plain_sgd, root_of
from everyrank.parity.values.exact import drop_mixed_precision, has_mixed_precision, running_in
from everyrank.parity.values.names import (
    Rename,
    buffers,
    chunks_of,
    known_name,
    parameters,
    unwrapped,
    without_number,
)
from everyrank.parity.values.tree import module_in
from everyrank.parity.values.watch import needs_closure, watchable
from torch import nn

T = TypeVar("T")

#: What is done with a fresh model before it is made parallel.
Prepare = Callable[[nn.Module], None]


@dataclass(frozen=True)
class Parallel:
    """What parallelize has made of a fresh copy of the plain model on this rank."""

    made: Any
    modules: list[nn.Module]
    root: nn.Module
    """The model of which optimizer= makes one."""
    names: list[str]
    """Of the plain model's parameters."""
    optimizer: Optimizers
    rename: Rename | None = None
    """The user's, or one that takes off the name by which the user's own wrapper has the plain model."""
    mixed: torch.dtype | None = None
    """The dtype in which FSDP2's modules would compute outside of a run in fp64, if it is not their parameters'."""


@dataclass(frozen=True)
class Reference:
    """The model that ranks are compared with: its tensors and modules under the plain model's names."""

    made: Any
    parameters: dict[str, nn.Parameter]
    modules: dict[str, nn.Module]
    buffers: dict[str, torch.Tensor]
    optimizer: Optimizers


def of_plain(setup: Setup, read: Callable[[nn.Module], T]) -> T:
    """Return what is read of the model whose names, sizes and first values are the reference's."""
    if not setup.one_rank:
        return read(setup.fresh())
    found: list[T] = []
    try:
        in_lone_world(lambda give: give(read(setup.fresh())), found.append)
    except FailedAlone as failed:
        raise Unusable(f"model() fails in a world of one: {failed}") from None
    return found[0]


def reference(setup: Setup, dtype: torch.dtype, *, exact: bool, cast: bool, prepare: Prepare) -> Reference:
    """Build the reference in a dtype, inside of its world.

    It is the plain model, or what the user's code makes of it on one rank.
    """
    model = setup.fresh()
    if exact or cast or dtype != own_dtype(model):
        model = module_in(model, dtype)
    prepare(model)
    if not setup.one_rank:
        named = dict(model.named_parameters())
        with running_in(dtype if exact else torch.get_default_dtype(), exact):
            optimizer = optimizers_of(setup.optimizer, model, named)
        return Reference(model, named, _below(model), dict(buffers([model])), optimizer)
    names, sizes = dict(model.named_modules()), {name: each.shape for name, each in model.named_parameters()}
    alone = _made(setup, model, dtype, exact=exact)
    found = {_plain(alone, without_number(key), sizes): each for key, each in parameters(alone.modules)}
    other = [name for name, size in sizes.items() if name not in found or found[name].shape != size]
    if other:
        raise Unusable(
            f'parallelize makes other parameters on one rank than model() has: {other[0]}. With reference="one rank" '
            "both have the same names and sizes there: pass rename=, or build the model whole in model()."
        )
    modules = {_plain(alone, name, names): each for module in alone.modules for name, each in _below(module).items()}
    return Reference(
        alone.made, {name: found[name] for name in sizes}, modules, dict(buffers(alone.modules)), alone.optimizer
    )


def _below(root: nn.Module) -> dict[str, nn.Module]:
    return {name: module for name, module in watchable(root) if name}


def _plain(alone: Parallel, name: str, known: Any) -> str:
    return known_name(name, alone.rename, known) or name


def parallelize(setup: Setup, dtype: torch.dtype, *, exact: bool, prepare: Prepare) -> Parallel:
    """Call the user's parallelize on a fresh plain model."""
    model = setup.fresh()
    if exact or dtype != own_dtype(model):
        model = module_in(model, dtype)
    if not (setup.one_rank and setup.load is not None):
        _check_sizes(setup, model)
        prepare(model)
        return _made(setup, model, dtype, exact=exact)
    own = next(model.parameters()).dtype.to_real()

    def state(whole: nn.Module) -> dict[str, Any]:
        whole = module_in(whole, own)
        prepare(whole)
        return {name: each.detach().clone() for name, each in whole.state_dict().items()}

    return _made(setup, model, dtype, exact=exact, state=of_plain(setup, state))


def _check_sizes(setup: Setup, model: nn.Module) -> None:
    """Raise Unusable if a model that is built on all ranks has not the parameters of the one that is built on one."""
    if not setup.one_rank:
        return
    mine = _sizes(model)
    for name, size in of_plain(setup, _sizes).items():
        if mine.get(name) != size:
            raise Unusable(
                f"model() makes {name} of another size in a world of one: pass load=, which puts the state dict of "
                "one rank into what parallelize returns."
            )


def _sizes(model: nn.Module) -> dict[str, torch.Size]:
    return {name: each.shape for name, each in model.named_parameters()}


def _made(
    setup: Setup, model: nn.Module, dtype: torch.dtype, *, exact: bool, state: dict[str, Any] | None = None
) -> Parallel:
    if setup.load is not None and state is None:
        state = copy.deepcopy(model.state_dict())
    before, names = _looks(model), [name for name, _ in model.named_parameters()]
    seed(SEED)
    with running_in(dtype if exact else torch.get_default_dtype(), exact):
        made = setup.parallelize(model)
        own = None
        if isinstance(made, tuple) and len(made) == 2 and _steps(made[1]):
            made, own = made
            _check_optimizer(setup)
        modules = chunks_of(made)
        root, rename = root_of(modules, model), setup.rename or unwrapped(modules, model)
        if setup.load is not None:
            setup.load(made, state or {})
        mixed = has_mixed_precision(modules)
        if exact:
            drop_mixed_precision(modules)
        if own is None and not any(each.requires_grad for each in root.parameters()):
            # Torch refuses an optimizer of nothing, and a rank may hold none of the parameters.
            own = plain_sgd([nn.Parameter(torch.empty(0))])
        optimizer = optimizers_of(setup.optimizer, root, names, rename) if own is None else Optimizers(own)
    for each in optimizer.each if setup.step is None else ():
        if needs_closure(each):
            raise Unusable(
                f"{type(each).__name__} needs a closure in its step: pass step=, which calls optimizer.step(closure)."
            )
    if not setup.ends_by_hand and not setup.one_rank and modules == [model] and _looks(model) == before:
        raise Unusable(
            "parallelize left the model as it is: nothing is cut, wrapped or hooked, so nothing reduces gradients. "
            "Return what it should train, or pass finish= or step=, which reduces them."
        )
    return Parallel(made, modules, root, names, optimizer, rename, mixed)


def _steps(given: Any) -> bool:
    """Return whether something is an optimizer, or a list of these."""
    every = given if isinstance(given, list | tuple) and given else [given]
    return all(hasattr(each, "step") for each in every)


def _check_optimizer(setup: Setup) -> None:
    """Raise Unusable if nobody has said with which optimizer the plain model trains."""
    if setup.optimizer is plain_sgd:
        raise Unusable(
            "parallelize returned an optimizer of its own, and the plain model would train with another: pass "
            "optimizer=, a function from parameters to the plain optimizer with the same settings."
        )


def _looks(model: nn.Module) -> list[Any]:
    """Return what changes in a model that was made parallel in place."""
    return [
        (type(each), id(each), len(each._forward_hooks), len(each._forward_pre_hooks), len(each._backward_hooks))
        for each in model.modules()
    ] + [
        (id(each), tuple(each.shape), len(each._backward_hooks or ()), len(each._post_accumulate_grad_hooks or ()))
        for each in model.parameters()
    ]
