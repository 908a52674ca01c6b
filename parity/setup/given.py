"""What a user gives to parity, checked and with its defaults."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from everyrank.parity.errors import Unusable
from everyrank.parity.setup.optimizers import plain_sgd
from everyrank.parity.values.names import Rename
from everyrank.parity.values.tree import has_numbers, in_dtype
from torch import nn

Loss = Callable[[Any, Any], Any]
Step = Callable[[Any, Any, Any], Any]
Split = str | Callable[[Any], Any]

#: The seed of every run, so that a model which is built twice is the same model.
SEED = 20


def seed(number: int) -> None:
    """Seed torch on this rank."""
    # `torch.manual_seed` walks the stack for each call that CUDA may need later.
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(number)


@dataclass(frozen=True)
class Setup:
    """One call of parity."""

    model: Callable[[], nn.Module]
    parallelize: Callable[[nn.Module], Any]
    batch: Callable[[int], Any]
    loss: Loss
    optimizer: Callable[[Any], Any] = plain_sgd
    step: Step | None = None
    finish: Callable[[Any], Any] | None = None
    load: Callable[[Any, dict[str, torch.Tensor]], Any] | None = None
    rename: Rename | None = None
    skip: tuple[str, ...] = ()
    split: Split | None = None
    gradients: str | None = None
    dtypes: tuple[torch.dtype, ...] | None = None
    clip: float | None = None
    clamp: float | None = None
    """The value to which gradients are clipped: torch's function is watched, and nobody says it."""
    epsilon: float = 1e-6
    """What the ranks' clip adds to the norm; torch's function adds this."""
    steps: int = 3
    microbatches: int = 2
    compared: float = 0.9
    reference: str = "plain"
    numbers: tuple[float, ...] = ()
    """The whole batch's number of each step, by which a loss that is a sum is divided, once it is known."""
    default_dtype: torch.dtype = field(default_factory=torch.get_default_dtype)

    @property
    def one_rank(self) -> bool:
        """Whether the reference is the user's parallel code in a world of one."""
        return self.reference == "one rank"

    @property
    def has_own_parts(self) -> bool:
        """Whether the user says how a batch is cut: what the plain loop trains on is then nothing of theirs."""
        return self.step is not None or callable(self.split)

    @property
    def ends_by_hand(self) -> bool:
        """Whether code of the user's runs between the backward and the optimizer's step."""
        return self.step is not None or self.finish is not None

    def share_of(self, found: Any, step: int, parts: int = 1) -> Any:
        """Return what the loss of one of a batch's parts adds to the whole's: a share of a mean, or of a sum."""
        if not isinstance(found, tuple):
            return found / parts
        total, number = found
        return total / (self.numbers[step] if self.numbers else number)

    def fresh(self) -> nn.Module:
        """Return the plain model as the user builds it."""
        seed(SEED)
        model = self.model()
        if not isinstance(model, nn.Module):
            raise Unusable(f"model() returned {type(model).__name__}: return the plain torch.nn.Module.")
        return model

    def whole_batch(self, step: int, dtype: torch.dtype) -> Any:
        """Return the batch of a step in a dtype; it is made as the user makes it, whatever dtype a run has."""
        seed(SEED + step)
        before = torch.get_default_dtype()
        torch.set_default_dtype(self.default_dtype)
        try:
            return in_dtype(self.batch(step), dtype)
        finally:
            torch.set_default_dtype(before)

    def skips(self, name: str) -> bool:
        """Return whether the user does not want this tensor compared."""
        return any(fnmatchcase(name, pattern) for pattern in self.skip)


def listed(name: str, given: Any) -> tuple[Any, ...]:
    """Return a list as a tuple. A text alone would be taken apart: the star of a pattern skips every tensor."""
    if isinstance(given, str | torch.dtype):
        raise Unusable(f"{name}= is {given!r}: pass a list, [{given!r}].")
    return tuple(given)


def checked(setup: Setup, optimizer: Callable[[Any], Any] | None) -> Setup:
    """Return the setup with a factory for the model, and the optimizer if there is one given.

    Raise Unusable with what to write.
    """
    if optimizer is not None:
        setup = replace(setup, optimizer=optimizer)
    if isinstance(setup.model, nn.Module):
        original = copy.deepcopy(setup.model)
        setup = replace(setup, model=lambda: copy.deepcopy(original))
    elif not callable(setup.model):
        raise Unusable(
            f"model= is {type(setup.model).__name__}: pass a function that builds the plain model, or the model."
        )
    for name in ("parallelize", "batch", "loss", "optimizer"):
        if not callable(getattr(setup, name)):
            raise Unusable(f"{name}= is {type(getattr(setup, name)).__name__}: pass a function.")
    for name, number in {"steps": setup.steps, "microbatches": setup.microbatches}.items():
        if not isinstance(number, int) or number < 1:
            raise Unusable(f"{name}= is {number!r}: pass a whole number, 1 or more.")
    if not 0 <= setup.compared <= 1:
        raise Unusable(f"compared= is {setup.compared!r}: pass the part that must be compared, from 0 to 1.")
    if setup.reference not in ("plain", "one rank"):
        raise Unusable(f'reference= is "{setup.reference}": pass "plain" or "one rank".')
    if isinstance(setup.split, str) and setup.split not in ("rows", "sequence", "none"):
        raise Unusable(
            f'split= is "{setup.split}": pass "rows", "sequence", "none", or a function from the whole batch to a '
            "part."
        )
    if setup.gradients not in (None, "mean", "sum"):
        raise Unusable(f'gradients= is {setup.gradients!r}: pass "mean" or "sum", as ranks put theirs together.')
    if setup.step is not None and (setup.finish is not None or setup.gradients is not None):
        name = "gradients" if setup.finish is None else "finish"
        raise Unusable(f"{name}= is for the plain loop, and step= stands for it: leave one of them out.")
    return setup


def own_dtype(model: nn.Module) -> torch.dtype:
    """Return the dtype in which the user trains: that of most weights."""
    counts: dict[torch.dtype, int] = {}
    for parameter in model.parameters():
        if has_numbers(parameter):
            dtype = parameter.dtype.to_real()
            counts[dtype] = counts.get(dtype, 0) + parameter.numel()
    if not counts:
        raise Unusable("the plain model has no parameter with floating numbers: there is nothing to train.")
    return max(counts, key=lambda dtype: counts[dtype])
