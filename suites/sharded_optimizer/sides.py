"""Both sides of a script of ``sharded-optimizer`` on one rank: the subject, and the reference beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from everyrank import current_world
from everyrank.fixtures.optimizers import row
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.comparison import CLOSE_FP64, EXACT, Comparison, Tolerance, check
from everyrank.suites.engine.contract import Point
from everyrank.suites.engine.subject import Subject
from everyrank.suites.moves.model import put
from everyrank.suites.moves.together import reference_acts
from everyrank.suites.sharded_optimizer.arena import Arena, Parameter, Spec
from everyrank.suites.sharded_optimizer.geometry import Block, Geometry, along
from everyrank.suites.sharded_optimizer.laws.sparse_gradients import give_rows, give_rows_of_ranks
from everyrank.suites.sharded_optimizer.laws.training import Signed, unchanged
from everyrank.suites.sharded_optimizer.model import Model, Param
from torch import nn
from torch.distributed._shard.sharded_tensor import ShardedTensor


class Sides:
    """The parameters of one model with their uncut twins, the subject over them, and the reference over the twins."""

    def __init__(self, subject: Subject, made_of: Model) -> None:
        world = current_world()
        self.subject, self.made_of = subject, made_of
        self.arena = Arena(subject, Point("script", world.size), world)
        self.dtype: torch.dtype = getattr(torch, made_of.dtype)
        found = row(made_of.optimizer)
        self.variant = found.variant(made_of.variant)
        self.optimizer: Any = found.optimizer
        if made_of.subclass:
            self.optimizer = Signed if made_of.subclass == "signed" else unchanged(self.optimizer)
        self.arguments: Mapping[str, Any] = {}
        """The arguments with which the subject was built."""
        self.module: tuple[nn.Module, nn.Module] | None = None
        """The module of the parameters, if they have one, and its uncut twin."""
        if made_of.module:
            self._make_module()
        else:
            self._make_parameters()
        self.groups: list[tuple[int, int, dict[str, Any]]] = [(0, min(made_of.first, len(self.parameters)), {})]
        """First and last parameter of each group, and the options with which it was added."""
        with reference_acts():
            self.reference = self.optimizer(self.handed_twins, **self.variant.make())
        self.build(self.variant.make())

    @property
    def parameters(self) -> list[Parameter]:
        return self.arena.parameters

    # --- making --------------------------------------------------------------------------------------

    def _make_parameters(self) -> None:
        params = self.made_of.params
        for param, made in zip(params, self.arena.make([_spec(param) for param in params], self.dtype), strict=True):
            made.name = param.name

    def _make_module(self) -> None:
        """Make the parameters in a module, some of them cut by the subject's tool, and an uncut twin of it."""
        ours, twin = nn.Module(), nn.Module()
        uncut_values = Arena(self.subject, self.arena.point, self.arena.world)
        for param in self.made_of.params:
            spec = Spec(param.shape, None, 0, param.layout) if param.tool else _spec(param)
            made = uncut_values.make([spec], self.dtype)[0]
            made.twin.requires_grad_(False)
            uncut = nn.Parameter(made.twin, requires_grad=not param.frozen)
            own = made.given
            if not isinstance(own, ShardedTensor):
                own = nn.Parameter(own.detach(), requires_grad=not param.frozen)
            for name in filter(None, (param.name, param.also)):
                put(ours, name, own)
                put(twin, name, uncut)
        with subject_acts():
            for param in self.made_of.params:
                if param.tool:
                    self.arena.tool("shard_parameter")(ours, param.name, self.arena.spec(param.dim))
        self.module = ours, twin
        values = self.named_parameters()
        twins = dict(twin.named_parameters())
        for param in self.made_of.params:
            name = param.name if param.name in twins else param.also
            self.arena.adopt(name, values[name], twins[name])

    def named_parameters(self, **arguments: Any) -> dict[str, Any]:
        """Return the parameters of the module as the subject's tool names them, and check their names."""
        assert self.module is not None
        ours, twin = self.module
        with subject_acts():
            found = list(self.arena.tool("named_parameters")(ours, **arguments))
        listed = sorted(name for name, _ in found)
        wanted = sorted(name for name, _ in twin.named_parameters(**arguments))
        check(listed == wanted, f"the named parameters are {listed}, those of the model {wanted}")
        return dict(found)

    def build(self, arguments: Mapping[str, Any], reverse: bool = False) -> None:
        """Build the subject over the current groups; with ``reverse``, each gets its names in reverse order."""
        self.arguments = arguments
        (start, end, _), *others = self.groups
        with subject_acts():
            self.ours = self.arena.build_over(self.optimizer, self.named(start, end, reverse), **arguments)
            for start, end, options in others:
                self.ours.add_param_group({"params": self.named(start, end, reverse), **options})

    def named(self, start: int, end: int, reverse: bool = False) -> dict[str, Any]:
        """Return these parameters as the subject gets them, by name: a tied parameter has two names."""
        named = {}
        pairs = list(zip(self.made_of.params[start:end], self.parameters[start:end], strict=True))
        for param, made in reversed(pairs) if reverse else pairs:
            named[made.name] = made.given
            if param.also and not self.made_of.module:
                named[param.also] = made.given
        return named

    def renew(self) -> None:
        """Replace the parameters by new objects without gradients, as a fresh process would have them."""
        self.arena.again()
        for param in self.parameters:
            param.twin.grad = None

    @property
    def trained(self) -> list[Parameter]:
        return [param for param in self.parameters if param.twin.requires_grad]

    @property
    def handed_twins(self) -> list[torch.Tensor]:
        """The reference's parameters that its optimizer has."""
        return [param.twin for param in self.parameters[: self.groups[-1][1]]]

    # --- what both are given ---------------------------------------------------------------------------

    def give(
        self, number: int, missing: Sequence[int] = (), rows: Sequence[Sequence[int]] = (), own: bool = False
    ) -> None:
        """Set new gradients of all that is trained; see ``TrainingMoves.train``."""
        pairs = list(zip(self.made_of.params, self.parameters, strict=True))
        used = [pair for index, pair in enumerate(pairs) if pair[1].twin.requires_grad and index not in missing]
        self.arena.give_gradients([made for param, made in used if not param.table], number, own)
        for param, made in used:
            if param.table:
                self._look_up(made, number, [_shifted(each, made) for each in rows or [(number,)]])
            if param.zero:
                for tensor in (made.twin, *(tensor for tensor, _ in made.pieces)):
                    assert tensor.grad is not None
                    tensor.grad = torch.zeros_like(tensor.grad)

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

    def add_group(self, count: int, options: dict[str, Any]) -> None:
        """Add the next parameters as a group."""
        start = self.groups[-1][1]
        self.groups.append((start, start + count, options))
        with reference_acts():
            self.reference.add_param_group({"params": self.handed_twins[start:], **options})
        with subject_acts():
            self.ours.add_param_group({"params": self.named(start, start + count), **options})

    def require_gradient(self, number: int, required: bool) -> None:
        """Clear a parameter's gradient, and freeze or thaw it."""
        param = self.parameters[number]
        for tensor in (param.twin, *(tensor for tensor, _ in param.pieces)):
            tensor.grad = None
        for whole in (param.twin, param.given):  # a ShardedTensor does so with all of its shards
            whole.requires_grad_(required)

    # --- comparing -----------------------------------------------------------------------------------

    def compare(self, number: int) -> None:
        """Compare all parameters, bit for bit: the same kernels run on the same values.

        A row's sparse gradients may be added up before or after they are applied, which rounds differently.
        """
        sparse = any(param.table for param in self.made_of.params)
        comparison = Comparison(CLOSE_FP64 if sparse else EXACT, self.subject.bound)
        self.arena.compare(comparison, number)
        comparison.raise_first()
        for param in self.parameters:
            for tensor, _ in param.pieces:
                frozen = "requires" if param.twin.requires_grad else "does not require"
                check(tensor.requires_grad == param.twin.requires_grad, f"{param.name} no longer {frozen} grad")

    def compare_gradients(self, tolerance: Tolerance) -> None:
        comparison = Comparison(tolerance)
        for param in self.parameters:
            name = f"the gradient of {param.name}"
            for tensor, index in param.pieces:
                wanted = None if param.twin.grad is None else param.twin.grad.to_dense()[index]
                have = "None" if tensor.grad is None else "a tensor"
                want = "None" if wanted is None else "a tensor"
                check(have == want, f"{name} is {have} instead of {want}")
                if tensor.grad is not None and wanted is not None:
                    comparison.step(0, {name: tensor.grad.to_dense()}, {name: wanted})
        comparison.raise_first()


def _shifted(rows: Sequence[int], table: Parameter) -> list[int]:
    """Return rows of a table: others for each table. Those that are sorted stay so."""
    found = [(each + table.number) % table.twin.shape[0] for each in rows]
    return sorted(set(found)) if list(rows) == sorted(set(rows)) else found


def _spec(param: Param) -> Spec:
    geometry = None if param.cut is None else _geometry(param.cut)
    return Spec(param.shape, geometry, param.dim, param.layout, not param.frozen)


def _geometry(cut: tuple[tuple[int, int], ...]) -> Geometry:
    """Return a geometry that cuts as the model does."""

    def blocks(shape: tuple[int, ...], dim: int, size: int) -> list[Block]:
        return along(shape, dim, [owner for owner, _ in cut], [length for _, length in cut])

    return blocks
