"""What optimizer= makes of a model: an optimizer, or several, with their schedulers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from everyrank.parity.errors import Unusable
from everyrank.parity.values.names import Rename, known_name, plain_name
from everyrank.parity.values.tree import has_numbers, local
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau


def plain_sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer of a user who names none."""
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)


class Optimizers:
    """All optimizers of a model, which step as one, and their schedulers."""

    def __init__(self, given: Any) -> None:
        #: What a step= of the user's gets.
        self.given = given
        every = [*_leaves(given)]
        self.schedulers = [each for each in every if isinstance(each, LRScheduler)]
        self.each = [each for each in every if not isinstance(each, LRScheduler)]
        if not self.each:
            raise Unusable("optimizer= returned no optimizer: return one, or a list of optimizers and schedulers.")
        for scheduler in self.schedulers:
            if isinstance(scheduler, ReduceLROnPlateau):
                raise Unusable(
                    "ReduceLROnPlateau needs a number in its step, of which parity knows none: leave it out of "
                    "optimizer=, and give that the rates that are to be tried."
                )

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for each in self.each for group in getattr(each, "param_groups", ())]

    @property
    def grad_scale(self) -> float:
        """What fused optimizers divide gradients by, of a GradScaler."""
        scales = (getattr(each, "grad_scale", None) for each in self.each)
        return float(next((scale for scale in scales if scale is not None), 1.0))

    def state_of(self, parameter: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield what an optimizer keeps of each element of a parameter, as moments or an average, under its name."""
        whole = local(parameter.detach())
        for each in self.each:
            state = getattr(each, "state", None)
            for name, value in state[parameter].items() if isinstance(state, Mapping) and parameter in state else ():
                if isinstance(value, torch.Tensor) and has_numbers(value) and local(value).shape == whole.shape:
                    yield str(name), local(value.detach())

    def numbers_of(self, parameter: torch.Tensor) -> Iterator[tuple[str, float]]:
        """Yield what an optimizer keeps of a parameter as a whole, as how many steps it has made, under its name."""
        for each in self.each:
            state = getattr(each, "state", None)
            for name, value in state[parameter].items() if isinstance(state, Mapping) and parameter in state else ():
                is_number = isinstance(value, int | float) or (isinstance(value, torch.Tensor) and not value.ndim)
                if is_number and not isinstance(value, bool):
                    yield str(name), float(value)

    def step(self) -> None:
        for each in self.each:
            each.step()

    def end(self) -> None:
        """End a step: forget the gradients, and go on with the rates of the next one."""
        for each in self.each:
            each.zero_grad()
        for scheduler in self.schedulers:
            scheduler.step()


def _leaves(given: Any) -> Iterator[Any]:
    if isinstance(given, list | tuple | Mapping):
        for each in given.values() if isinstance(given, Mapping) else given:
            yield from _leaves(each)
    elif hasattr(given, "step"):
        yield given
    else:
        raise Unusable(
            f"optimizer= returned {type(given).__name__}: return an optimizer, or a list of optimizers and "
            "schedulers."
        )


class Chunks(nn.ModuleList):
    """The chunks of a pipeline that a rank has, as one module: names are without the numbers of chunks."""

    def named_modules(self, memo: Any = None, prefix: str = "", remove_duplicate: bool = True) -> Iterator[Any]:
        memo = set() if memo is None else memo
        for chunk in self:
            yield from chunk.named_modules(memo, prefix, remove_duplicate)


def root_of(modules: Sequence[nn.Module], plain: nn.Module) -> nn.Module:
    """Return the model that optimizer= gets: without a wrapper, if the plain model is inside with all parameters."""
    root = modules[0] if len(modules) == 1 else Chunks(modules)
    inside = any(module is plain for module in root.modules())
    return plain if inside and {*map(id, root.parameters())} <= {*map(id, plain.parameters())} else root


def takes(optimizer: Callable[..., Any]) -> str:
    """Return what a function makes an optimizer of: "model", "names" or "parameters", by its first argument."""
    try:
        first = next(iter(inspect.signature(optimizer).parameters.values()), None)
    except (TypeError, ValueError):
        return "parameters"
    if first is None:
        return "parameters"
    kind = first.annotation if isinstance(first.annotation, str) else getattr(first.annotation, "__name__", "")
    if first.name in ("model", "module") or kind.rpartition(".")[2] == "Module":
        return "model"
    return "names" if first.name.startswith("named") else "parameters"


def optimizers_of(
    optimizer: Callable[..., Any], root: nn.Module, known: Iterable[str] = (), rename: Rename | None = None
) -> Optimizers:
    """Call optimizer= with what it takes of a model, whose parameters have the ``known`` names of the plain one."""
    trained = [(name, each) for name, each in root.named_parameters() if each.requires_grad]
    if (taken := takes(optimizer)) == "model":
        return Optimizers(optimizer(root))
    if taken == "parameters":
        return Optimizers(optimizer([each for _, each in trained]))
    return Optimizers(
        optimizer([(known_name(name, rename, known) or plain_name(name, rename), each) for name, each in trained])
    )


def twin_of(module: nn.Module, copies: Mapping[int, nn.Parameter]) -> nn.Module:
    """Return a module that has other parameters, by the ids of its own, and else is the same; nobody calls it."""
    twin: nn.Module = object.__new__(type(module))
    own = {name: each if each is None else copies.get(id(each), each) for name, each in module._parameters.items()}
    below = {name: each if each is None else twin_of(each, copies) for name, each in module._modules.items()}
    vars(twin).update(vars(module), _parameters=own, _modules=below)
    return twin
