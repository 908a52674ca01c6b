"""What a script of ``trainer`` has done so far, as plain data, and what a model needs of a subject."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from everyrank.fixtures.optimizers import row
from everyrank.suites.moves.model import ModelOutline, Param
from everyrank.suites.moves.model import needed_by as everywhere
from everyrank.suites.trainer.model import Model


@dataclass
class Outline(ModelOutline[Model]):
    """The facts on which it depends whether a move makes sense, and what it needs."""

    handed: int = field(init=False)
    """How many of the parameters are in a group."""
    unused: bool = field(init=False)
    """Whether there is a parameter that no rank has used, in all steps or in one."""
    steps: int = 0
    """How many steps there were, if they are counted: LBFGS may do two."""
    fresh: bool = True
    """Whether some parameters have not been stepped yet."""
    added: bool = False
    """Whether a group was added after the last step."""
    thawed: bool = False
    """Whether a parameter was thawed, or frozen, after the last step."""
    saved: bool = False
    loaded: bool = False
    spoiled: bool = False
    still: bool = False
    """Whether the rate of all groups is zero."""
    stood: bool = False
    """Whether there was a step since."""
    missed: bool = False
    """Whether the last step has failed."""
    rate_hooked: bool = False
    """Whether a hook changes the rates, also in a step that fails then."""
    scheduled: bool = False
    """Whether there is a scheduler, or was: it leaves initial rates in the groups."""
    keeps: bool = field(init=False)
    """Whether the optimizer keeps something for each parameter: after a step, if it does not yet but will."""
    will_keep: bool = field(init=False)
    saved_keeps: bool = False
    used: frozenset[int] = frozenset()
    """The parameters that were unused or frozen at first, and have been trained since."""
    saved_still: tuple[bool, bool] = (False, False)
    saved_idle: frozenset[int] = frozenset()
    """The parameters that had been unused or frozen until the state was saved."""

    def __post_init__(self) -> None:
        super().__post_init__()
        model = self.model
        self.handed = sum(group.count for group in model.groups) if model.groups else len(model.params)
        self.unused = any(param.unused for param in model.params)
        self.keeps = self.will_keep = self.built_to_keep

    @property
    def built_to_keep(self) -> bool:
        """Whether the optimizer keeps something as it is built."""
        given = row(self.model.optimizer).variant(self.model.variant).arguments
        return self.model.optimizer != "SGD" or "momentum" in given

    @property
    def trained(self) -> list[int]:
        return [number for number in range(self.count) if number not in self.frozen]

    @property
    def idle(self) -> list[int]:
        """The parameters that have been unused or frozen so far."""
        idle = [number for number, param in enumerate(self.model.params) if param.unused or param.frozen]
        return [number for number in idle if number not in self.used]

    @property
    def closures(self) -> bool:
        return self.model.optimizer == "LBFGS"

    @property
    def sparse(self) -> bool:
        return any(param.layout == "embedding" for param in self.model.params)

    @property
    def tied(self) -> bool:
        return any(param.also for param in self.model.params)

    def has(self, dtype: str) -> bool:
        return any(param.dtype == dtype for param in self.model.params)

    @property
    def rounds(self) -> bool:
        """Whether there is a gradient whose norm is rounded to few bits."""
        return any(param.dtype == "bfloat16" and not param.zero for param in self.model.params)

    @property
    def tensors(self) -> bool:
        """Whether each rate is a tensor."""
        return bool(self.model.groups) and all(group.tensor for group in self.model.groups)

    @property
    def complex(self) -> bool:
        return any(param.dtype.startswith("complex") for param in self.model.params)

    @property
    def decays(self) -> bool:
        """Whether the optimizer has a weight decay. None adds it to a sparse gradient."""
        return not self.sparse and "weight_decay" in row(self.model.optimizer).fullest.arguments

    def clipping_needs(self, parts: int) -> Iterator[str]:
        """Yield what a step that clips needs, besides clipping."""
        if self.count:
            yield "clipping of parameters of no layer"
        if parts > 1:
            yield "clipping of microbatches"
        if self.frozen or self.model.bare:
            yield "clipping of frozen parameters"
        if self.tied:
            yield "clipping of tied parameters"
        if self.unused:
            yield "clipping of unused parameters"
        if self.has("float32") or self.has("bfloat16"):
            yield "clipping of mixed dtypes"
        if self.complex:
            yield "clipping of complex parameters"

    def saving_needs(self) -> Iterator[str]:
        yield f"states of {self.model.optimizer}"
        if not self.keeps:
            yield "states of fresh trainers"  # it is always as fresh as it was
        if self.scheduled:
            yield "states of scheduled rates"
        if self.fresh or self.thawed:
            yield "states of fresh trainers"
        if not self.fresh:
            yield "states in between"
        if self.tied:
            yield "states of tied parameters"
        if self.frozen or self.model.bare:
            yield "states of frozen parameters"
        if self.unused:
            yield "states of unused parameters"
        if self.model.buffer:
            yield "states of buffers"


def needed_by(param: Param, size: int) -> Iterator[str]:
    """Yield the features that a parameter needs beside layers."""
    yield "branches"
    yield "parameters of no layer"
    yield from needed_by_itself(param, size)


def needed_by_itself(param: Param, size: int) -> Iterator[str]:
    """Yield the features that a parameter needs, wherever it is used."""
    yield from everywhere(param)
    if param.shape and 0 < param.shape[0] < size:
        yield "few rows"
