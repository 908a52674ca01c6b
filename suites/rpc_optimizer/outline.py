"""What a script of ``rpc-optimizer`` has done so far, as plain data, and what a model needs of a subject."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from everyrank.fixtures.optimizers import rows
from everyrank.suites.arena.surface import PARTS
from everyrank.suites.moves.options import defaults_of, zeros_of
from everyrank.suites.rpc_optimizer.model import Model, Optimizer, Param, drawn_variants
from everyrank.suites.rpc_optimizer.parts import MORE

#: Options that are changed by hand.
OPTIONS = ("lr", "weight_decay", "maximize")


_COMPLEX = {"complex64", "complex128"}


def features() -> dict[str, str]:
    """Return all features: a subject is not asked for one if its ledger or its lacks match such a case."""
    found = {
        "classes of the user's own": "parity.subclass[*]",
        "parameters of no optimizer": "owned.only[*]",
        "frozen parameters": "none.frozen[*]",
        "missing gradients": "none.later-context[*]",
        "missing gradients with a user's class": "parity.subclass[later-context-*]",
        "empty contexts": "context.empty[*]",
        "contexts beside each other": "context.own[*]",
        "wrong contexts": "context.invalid[*]",
        "bf16": "parity.dtype[*-bf16-ws2]",
        "errors in steps": "errors.step[*]",
        "letters in errors": "errors.step[*]",
        "errors in several steps": "errors.several[*]",
        "errors that cannot travel": "errors.unpicklable[*]",
        "errors in constructors": "errors.constructor[*]",
        "owners that wait": "wait[*]",
        "steps at the same time": "concurrent.*[*]",
        "steps of other parameters at the same time": "concurrent.*[*]",
        "dropped optimizers": "clean.rrefs[*]",
        "refuses empty-list": "errors.arguments[empty-list-ws2]",
        "refuses non-leaf": "errors.arguments[non-leaf-ws2]",
    }
    found |= {f"use of {part}": f"surface[{part}-ws2]" for part in (*PARTS, *MORE)}
    for row in rows():
        name, variants = row.name, list(drawn_variants(row))
        if not variants:
            continue
        if "sparse" in row.takes:
            found[f"{name} with sparse gradients"] = f"parity.sparse[{name}-*]"
        if "sparse" in row.needs:
            continue
        found |= {f"{name} {variant.name}": f"parity.*[{name}-{variant.name}-ws3]" for variant in variants}
        found[f"{name} positional"] = f"parity.arguments[{name}-positional-ws2]"
        found[f"{name} explicit"] = f"parity.arguments[{name}-explicit-defaults-ws2]"
        if zeros_of(row.optimizer):
            found[f"{name} zeros"] = f"parity.arguments[{name}-zeros-ws2]"
        found[f"{name} with missing gradients"] = f"none.position[{name}-*]"
        if "complex" in row.takes:
            found[f"{name} complex"] = f"parity.dtype[{name}-complex-ws2]"
            found[f"{name} complex with arguments"] = f"parity.dtype[{name}-complex-everything-ws2]"
        found |= {f"{name} refuses {bad.name}": f"errors.arguments[{name}-{bad.name}-ws2]" for bad in row.invalid}
    return found


@dataclass
class Outline:
    """The facts on which it depends whether a move makes sense, and what it needs."""

    model: Model
    frozen: set[int] = field(init=False)
    """The tensors that are frozen, each by the number of its first parameter."""
    saved: set[int] = field(default_factory=set)
    """The optimizers of which there is a saved state."""
    holder: int | None = None
    """The rank that holds a context open."""
    reached: tuple[int, ...] = ()
    """The owners that the backward of the held context has reached."""

    def __post_init__(self) -> None:
        params = enumerate(self.model.params)
        self.frozen = {self.model.tensor(number) for number, param in params if param.frozen}

    @property
    def trained(self) -> list[int]:
        return [number for number in range(len(self.model.params)) if self.model.tensor(number) not in self.frozen]

    @property
    def others(self) -> list[int]:
        """The trained parameters that no optimizer has."""
        return [number for number in self.trained if self.model.tensor(number) not in self.model.given]

    def owners(self, numbers: Iterable[int]) -> list[int]:
        return sorted({self.model.params[number].owner for number in numbers})

    def owners_of(self, by: int) -> list[int]:
        """Return the owners of an optimizer's parameters."""
        return self.owners(self.model.optimizers[by].params)

    def stepped(self, by: int) -> list[int]:
        """Return the owners where an optimizer has something to step: on others it need not even be called."""
        return self.owners(set(self.model.optimizers[by].params) & set(self.trained))

    def client(self, by: Sequence[int]) -> int | None:
        """Return the rank that makes the steps of these optimizers, or None if there is not one."""
        known = range(len(self.model.optimizers))
        clients = {self.model.optimizers[number].client if number in known else None for number in by}
        return clients.pop() if len(clients) == 1 else None

    def options(self, by: int) -> list[str]:
        """Return the options that can be changed. No optimizer adds a weight decay to a sparse gradient."""
        known = set(defaults_of(self.model.optimizers[by].row.optimizer))
        return [name for name in OPTIONS if name in known - ({"weight_decay"} if self.model.sparse else set())]

    def without_gradients(self, missing: Collection[int]) -> Iterator[str]:
        """Yield what a subject needs if these have no gradient in a context."""
        if not missing:
            return
        yield "missing gradients"
        yield from _with_missing(self.model.optimizers)
        if set(self.trained) <= set(missing):
            yield "empty contexts"


def _with_missing(optimizers: Iterable[Optimizer]) -> Iterator[str]:
    for optimizer in optimizers:
        if optimizer.own:
            # torch steps a user's class on its eager path, whatever is in the ledger of its scripted path.
            yield "missing gradients with a user's class"
        if "sparse" not in optimizer.row.needs:
            yield f"{optimizer.name} with missing gradients"


def needed_by(model: Model, param: Param, number: int) -> Iterator[str]:
    """Yield the features that a parameter needs in a model."""
    if model.tensor(number) not in model.given:
        yield "parameters of no optimizer"
    if param.frozen:
        yield "frozen parameters"
        yield from _with_missing(model.optimizers)


def needed_of(optimizer: Optimizer, model: Model) -> Iterator[str]:
    """Yield the features that an optimizer needs in a model."""
    if optimizer.own:
        yield "classes of the user's own"
    if model.sparse:
        yield f"{optimizer.name} with sparse gradients"
    if "sparse" not in optimizer.row.needs:
        yield f"{optimizer.name} {optimizer.variant}"
    if optimizer.given != "named":
        yield f"{optimizer.name} {optimizer.given}"
    if "bfloat16" in model.dtypes:
        yield "bf16"
    if model.dtypes & _COMPLEX:
        plain = optimizer.variant == optimizer.row.plain.name
        yield f"{optimizer.name} complex{'' if plain else ' with arguments'}"


def fits(optimizer: Optimizer, model: Model) -> bool:
    """Return whether an optimizer takes these parameters and their gradients at all."""
    row = optimizer.row
    variant = row.variant(optimizer.variant)
    if optimizer.given == "zeros" and not zeros_of(row.optimizer):
        return False
    wanted = {
        name for name, there in {"sparse": model.sparse, "complex": bool(model.dtypes & _COMPLEX)}.items() if there
    }
    shapes: Any = [model.params[number].shape for number in optimizer.params]
    if "2d" in row.needs and any(len(shape) != 2 for shape in shapes):
        return False
    dense = any(model.params[number].gradient in ("dense", "zero") for number in optimizer.params)
    if "sparse" in row.needs and dense:
        return False
    return wanted <= (row.takes | (row.needs & {"sparse"})) - variant.refuses
