"""Both sides of a script of ``sharded-optimizer`` on one rank: the subject, and the reference beside it."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from everyrank.fixtures.optimizers import row
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.comparison import CLOSE_FP64, EXACT, Tolerance, check
from everyrank.suites.moves.together import reference_acts
from everyrank.suites.sharded_optimizer.arena import Arena, Parameter
from everyrank.suites.sharded_optimizer.home import Home
from everyrank.suites.sharded_optimizer.model import Model
from everyrank.suites.sharded_optimizer.sparse_gradients import give_rows, give_rows_of_ranks
from everyrank.suites.sharded_optimizer.subclasses import Signed, unchanged

#: By which factors gradients are huge, so that their squares overflow in half precision, or tiny.
_FACTORS = {"huge": 2.0**9, "tiny": 2.0**-20}

#: To which bound a hook clamps: a third of it is exact, as the mean of whole parameters needs.
_BOUND = 0.375


class Sides:
    """The parameters of one model with their uncut twins, the subject over them, and the reference over the twins."""

    def __init__(self, arena: Arena, made_of: Model, home: Home | None = None) -> None:
        self.arena, self.made_of = arena, made_of
        self.dtype = made_of.torch_dtype
        found = row(made_of.optimizer)
        self.variant = found.variant(made_of.variant)
        self.optimizer: Any = found.optimizer
        if made_of.subclass:
            self.optimizer = Signed if made_of.subclass == "signed" else unchanged(self.optimizer)
        self.arguments: Mapping[str, Any] = {}
        """The arguments with which the subject was built."""
        self._hooks: list[Any] = []  # those of the reference that act
        if made_of.module:
            (home or Home(arena, made_of)).adopt()
        else:
            self.arena.make(made_of.params, self.dtype)
        self.groups: list[tuple[int, int, dict[str, Any]]] = [(0, min(made_of.first, len(self.parameters)), {})]
        """First and last parameter of each group, and the options with which it was added."""
        self.tied: set[int] = set()
        """The first parameters of the groups that have that of the model once more."""
        with reference_acts():
            self.reference = self.optimizer(self.handed_twins, **self.given)
        self.build(self.given)

    @property
    def given(self) -> dict[str, Any]:
        """Fresh arguments of the optimizer, for the first of its groups if it is a variant that has some."""
        return {**self.variant.make(), **next(iter(self.variant.make_groups()), {})}

    @property
    def parameters(self) -> list[Parameter]:
        return self.arena.parameters

    # --- making --------------------------------------------------------------------------------------

    def build(self, arguments: Mapping[str, Any], reverse: bool = False) -> None:
        """Build the subject over the current groups; with ``reverse``, each gets its names in reverse order."""
        self.arguments = arguments
        (start, end, _), *others = self.groups
        with subject_acts():
            self.ours = self.arena.build_over(self.optimizer, self.named(start, end, reverse), **arguments)
            for start, end, options in others:
                self.ours.add_param_group({"params": self.named(start, end, reverse), **copy.deepcopy(options)})

    def named(self, start: int, end: int, reverse: bool = False) -> dict[str, Any]:
        """Return these parameters as the subject gets them, by name: a tied parameter has two names."""
        named = dict(self.tie) if start in self.tied else {}
        pairs = list(zip(self.made_of.params[start:end], self.parameters[start:end], strict=True))
        for param, made in reversed(pairs) if reverse else pairs:
            named[made.name] = made.given
            if param.also and not self.made_of.module:
                named[param.also] = made.given
        return named

    @property
    def tie(self) -> dict[str, Any]:
        """The first parameter of the model, by another name."""
        first = self.parameters[0]
        return {f"{first.name}_later": first.given}

    def renew(self) -> None:
        """Replace the parameters by new objects without gradients, as a fresh process would have them."""
        self.arena.again()
        for param in self.parameters:
            param.twin.grad = None
        while self._hooks:
            self._hooks.pop().remove()

    @property
    def trained(self) -> list[Parameter]:
        return [param for param in self.parameters if param.twin.requires_grad]

    @property
    def handed(self) -> list[Parameter]:
        """The parameters that the optimizers have."""
        return self.parameters[: self.groups[-1][1]]

    @property
    def handed_twins(self) -> list[torch.Tensor]:
        """Those of the reference."""
        return [param.twin for param in self.handed]

    # --- what both are given ---------------------------------------------------------------------------

    def give(
        self,
        number: int,
        missing: Sequence[int] = (),
        rows: Sequence[Sequence[int]] = (),
        own: bool = False,
        without: int | None = None,
    ) -> None:
        """Set new gradients of all that is trained; see ``TrainingMoves.train``."""
        pairs = list(zip(self.made_of.params, self.parameters, strict=True))
        used = [pair for index, pair in enumerate(pairs) if pair[1].twin.requires_grad and index not in missing]
        # What takes norms of a whole tensor adds up in the order in which it lies.
        turned = "whole-tensor" not in row(self.made_of.optimizer).needs
        self.arena.give_gradients([made for param, made in used if not param.table], number, own, turned, without)
        for param, made in used:
            if param.table:
                self._look_up(made, number, [_shifted(each, made) for each in rows or [(number,)]])
            if param.zero:
                self.set_gradient(made, torch.zeros_like(made.twin))
            elif param.values in _FACTORS:
                data = self.arena.data(made, number) * _FACTORS[param.values]
                self.set_gradient(made, self.arena.alike(made, data))
            elif param.values and own and made.whole and self.arena.syncs:
                mine = made.twin.sign() * _extreme(made.twin.dtype) * {0: 1.0, 1: -1.0}.get(self.arena.rank, 0.0)
                made.twin.grad, made.pieces[0][0].grad = torch.zeros_like(made.twin), mine.detach()

    def set_gradient(self, param: Parameter, whole: torch.Tensor) -> None:
        """Give a parameter this gradient on both sides."""
        param.twin.grad = whole
        for tensor, index in param.pieces:
            tensor.grad = whole[index].clone()

    def _look_up(self, table: Parameter, number: int, rows: Sequence[Sequence[int]]) -> None:
        """Let each rank look up its own rows in a whole table, and all ranks the same in a sharded one."""
        if len(rows) > 1 and table.whole and self.arena.syncs:
            give_rows_of_ranks(self.arena, table, number, rows)
        else:
            give_rows(self.arena, table, number, rows[0])

    @torch.no_grad()
    def take_gradients_of_reference(self) -> None:
        """Go on from these on both sides; those of whole parameters are rounded, so that their mean is exact."""
        for param in self.parameters:
            if param.twin.grad is not None:
                param.twin.grad = self.arena.alike(param, param.twin.grad)
            for tensor, index in param.pieces:
                tensor.grad = None if param.twin.grad is None else param.twin.grad[index].clone()

    def hook(self, after: bool) -> None:
        """Register a hook on both sides, unless the subject refuses it: twice in a step it does what it does once."""

        def clamp(own: bool) -> None:
            for param in self.trained:
                for tensor in [piece for piece, _ in param.pieces] if own else [param.twin]:
                    clamped = tensor.detach() if after else tensor.grad
                    if clamped is not None:
                        real = torch.view_as_real(clamped) if clamped.is_complex() else clamped
                        real.clamp_(-_BOUND, _BOUND)

        name = f"register_step_{'post' if after else 'pre'}_hook"
        try:
            getattr(self.ours, name)(lambda *_: clamp(True))
        except Exception:
            return
        self._hooks.append(getattr(self.reference, name)(lambda *_: clamp(False)))

    def add_group(self, number: int, options: dict[str, Any], tied: bool = False) -> None:
        """Add the next parameters as a group. ``tied``: the subject has it, with the model's first one once more."""
        start = self.groups[-1][1]
        self.groups.append((start, start + number, options))
        with reference_acts():
            self.reference.add_param_group({"params": self.handed_twins[start:], **copy.deepcopy(options)})
        if tied:
            self.tied.add(start)
            return
        with subject_acts():
            self.ours.add_param_group({"params": self.named(start, start + number), **copy.deepcopy(options)})

    def require_gradient(self, number: int, required: bool) -> None:
        """Clear a parameter's gradient, and freeze or thaw it."""
        param = self.parameters[number]
        for tensor in (param.twin, *(tensor for tensor, _ in param.pieces)):
            tensor.grad = None
        for whole in (param.twin, param.given):  # a ShardedTensor does so with all of its shards
            whole.requires_grad_(required)

    # --- comparing -----------------------------------------------------------------------------------

    @property
    def tolerance(self) -> Tolerance:
        """How far values may be off: not at all, since the same kernels run on the same values.

        A row's sparse gradients may be added up before or after they are applied, which rounds differently.
        """
        return CLOSE_FP64 if any(param.table for param in self.made_of.params) else EXACT

    def values(self) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Return this rank's tensors, and their slices of the reference."""
        found: dict[str, torch.Tensor] = {}
        wanted: dict[str, torch.Tensor] = {}
        for param in self.parameters:
            twin = param.twin.detach()
            for name, (tensor, index) in param.named().items():
                found[name], wanted[name] = tensor.detach(), twin[index]
            # Every rank checks that the whole reference moves: it may hold no shard, or an empty one.
            found[f"{param.name} of the reference"] = wanted[f"{param.name} of the reference"] = twin
        return found, wanted

    def check_frozen(self) -> None:
        """Check that each tensor requires a gradient if it is to be trained, and only then."""
        for param in self.parameters:
            for tensor, _ in param.pieces:
                frozen = "requires" if param.twin.requires_grad else "does not require"
                check(tensor.requires_grad == param.twin.requires_grad, f"{param.name} no longer {frozen} grad")


def _extreme(dtype: torch.dtype) -> float:
    """Return a number of which twice as much is infinite."""
    return 1.5 * 2.0 ** (math.frexp(torch.finfo(dtype).max)[1] - 1)


def _shifted(rows: Sequence[int], table: Parameter) -> list[int]:
    """Return rows of a table: others for each table. Those that are sorted stay so."""
    found = [(each + table.number) % table.twin.shape[0] for each in rows]
    return sorted(set(found)) if list(rows) == sorted(set(rows)) else found
