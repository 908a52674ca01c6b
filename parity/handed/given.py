"""What a user gives to handover, and a model and its other with weights handed over."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from everyrank.parity.errors import Unusable, in_a_line
from everyrank.parity.setup.given import SEED, seed
from everyrank.parity.values.tree import has_numbers, in_dtype, local, module_in
from torch import nn

State = dict[str, Any]


@dataclass(frozen=True)
class Pair:
    """A model, another module that should be the same model, and how the first one's weights come into it."""

    model: Callable[[], nn.Module]
    other: Callable[[], nn.Module]
    inputs: Any
    convert: Callable[[State], State] | None = None
    transfer: Callable[[nn.Module, nn.Module], Any] | None = None
    forward: Callable[[Any, Any], Any] | None = None
    other_forward: Callable[[Any, Any], Any] | None = None
    rename: Callable[[str], str] | None = None
    skip: tuple[str, ...] = ()

    def skips(self, name: str) -> bool:
        """Return whether the user does not want this tensor traced."""
        return any(fnmatchcase(name, pattern) for pattern in self.skip)

    def handed(self, model: nn.Module, other: nn.Module) -> nn.Module:
        """Hand the model's weights over; return the other module."""
        __tracebackhide__ = True
        seed(SEED)
        if self.transfer is not None:
            made = self.transfer(model, other)
            return made if isinstance(made, nn.Module) else other
        # What a converter changes in place is a copy, and twins stay twins.
        state: State = copy.deepcopy({name: each.detach() for name, each in model.state_dict().items()})
        state = state if self.convert is None else self.convert(state)
        try:
            other.load_state_dict(state)
        except RuntimeError as error:
            raise Unusable(
                f"the other module does not load what convert= returns: {_missing(error)}. Return a state dict with "
                "its names and shapes from convert=, or pass transfer=, a function of both modules."
            ) from None
        return other

    def outputs(self, module: nn.Module, is_other: bool) -> Any:
        """Run a module on the inputs in fp64, and return its outputs."""
        seed(SEED)
        inputs = in_dtype(copy.deepcopy(self.inputs), torch.float64)
        forward = (self.other_forward or self.forward) if is_other else self.forward
        returned = _called(module, inputs) if forward is None else forward(module, inputs)
        return getattr(returned, "logits", returned)


def _missing(error: RuntimeError) -> str:
    lines = [line.strip() for line in str(error).splitlines()[1:]]
    return lines[0].rstrip(".") if lines else in_a_line(error)


def _called(module: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return module(**inputs)
    return module(*inputs) if isinstance(inputs, tuple) else module(inputs)


def factory(given: Any, name: str) -> Callable[[], nn.Module]:
    """Return a function that builds a module afresh."""
    if isinstance(given, nn.Module):
        original = copy.deepcopy(given)
        return lambda: copy.deepcopy(original)
    if not callable(given):
        raise Unusable(f"{name}= is {type(given).__name__}: pass a module, or a function that builds it.")

    def build() -> nn.Module:
        seed(SEED)
        made = given()
        if not isinstance(made, nn.Module):
            raise Unusable(f"{name}() returned {type(made).__name__}: return a torch.nn.Module.")
        return made

    return build


def held(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what a state dict has of a module, each tensor once: parameters, and buffers with floating numbers."""
    kept, seen = {*module.state_dict()}, set[int]()
    for name, each in [*module.named_parameters(), *module.named_buffers()]:
        is_kept = name in kept or isinstance(each, nn.Parameter)
        if is_kept and has_numbers(each) and id(each) not in seen:
            seen.add(id(each))
            yield name, local(each.detach())


@torch.no_grad()
def moved(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Move each weight off what it was built as, so that no two are alike, and all of its bits count.

    Norms are built as ones and biases as zeros, of which any is right in place of any. The values are exact in
    ``dtype``, the narrowest that the other module has.
    """
    generator = torch.Generator().manual_seed(SEED)
    trained = {name for name, _ in model.named_parameters()}
    for name, values in held(model):
        random = torch.rand(values.shape, generator=generator, dtype=torch.float64).to(values.device)
        # Running variances stay above zero.
        random = random - 0.5 if name in trained else random
        values.copy_((values.double() * (1 + 0.1 * random) + 0.1 * random).to(dtype))
    return model


def narrowest(module: nn.Module) -> torch.dtype:
    """Return the dtype of a module that has the fewest bits."""
    found = [each.dtype for _, each in held(module)]
    return max(found, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)


def wide(module: nn.Module) -> nn.Module:
    """Return the module in fp64, as it is when nothing is trained."""
    return module_in(module, torch.float64).eval()
