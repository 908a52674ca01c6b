"""The objects of a draw of ``sharded-optimizer`` on one rank: make them and compare them with the reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from everyrank import current_world
from everyrank.fixtures.optimizers import row
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.comparison import CLOSE_FP64, EXACT, Comparison, Tolerance, check
from everyrank.suites.engine.contract import Point
from everyrank.suites.engine.subject import Subject
from everyrank.suites.generate.models import put
from everyrank.suites.generate.player import DrawnObjects, reference_acts
from everyrank.suites.sharded_optimizer import grammar as g
from everyrank.suites.sharded_optimizer.arena import Arena, Parameter, Spec
from everyrank.suites.sharded_optimizer.geometry import Block, Geometry, along
from everyrank.suites.sharded_optimizer.laws.training import Signed, unchanged
from torch import nn
from torch.distributed._shard.sharded_tensor import ShardedTensor


class ShardedObjects(DrawnObjects):
    """The parameters of one draw with their uncut twins, the subject over them, and the reference over the twins."""

    def __init__(self, subject: Subject, draw: g.Draw) -> None:
        world = current_world()
        self.subject, self.draw = subject, draw
        self.arena = Arena(subject, Point("generated", world.size), world)
        self.dtype: torch.dtype = getattr(torch, draw.dtype)
        found = row(draw.optimizer)
        self.variant = found.variant(draw.variant)
        self.optimizer: Any = found.optimizer
        if draw.subclass:
            self.optimizer = Signed if draw.subclass == "signed" else unchanged(self.optimizer)
        self.groups: list[tuple[int, int, dict[str, Any]]] = []
        """First and last parameter of each group, and the options with which it was added."""
        self.arguments: Mapping[str, Any] = {}
        """The arguments with which the subject was built."""
        self.module: tuple[nn.Module, nn.Module] | None = None
        """The module of the parameters, if they have one, and its uncut twin."""
        if draw.module:
            self._make_module()
        else:
            self._make_parameters()
        self.begin()

    @property
    def parameters(self) -> list[Parameter]:
        return self.arena.parameters

    # --- making --------------------------------------------------------------------------------------

    def _make_parameters(self) -> None:
        for param in self.draw.params:
            made = self.arena.make([_spec(param)], self.dtype)[0]
            made.name = param.name

    def _make_module(self) -> None:
        """Make the parameters in a module, some of them cut by the subject's tool, and an uncut twin of it."""
        ours, twin = nn.Module(), nn.Module()
        drawn = Arena(self.subject, self.arena.point, self.arena.world)
        for param in self.draw.params:
            spec = Spec(param.shape, None, 0, param.layout) if param.tool else _spec(param)
            made = drawn.make([spec], self.dtype)[0]
            made.twin.requires_grad_(False)
            uncut = nn.Parameter(made.twin, requires_grad=not param.frozen)
            own = made.given
            if not isinstance(own, ShardedTensor):
                own = nn.Parameter(own.detach(), requires_grad=not param.frozen)
            for name in filter(None, (param.name, param.also)):
                put(ours, name, own)
                put(twin, name, uncut)
        with subject_acts():
            for param in self.draw.params:
                if param.tool:
                    self.arena.tool("shard_parameter")(ours, param.name, self.arena.spec(param.dim))
        self.module = ours, twin
        values = self.named_parameters()
        twins = dict(twin.named_parameters())
        for param in self.draw.params:
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

    def begin(self) -> None:
        """Build the subject and the reference over the first parameters."""
        first = min(self.draw.first, len(self.parameters))
        self.groups = [(0, first, {})]
        with reference_acts():
            self.reference = self.optimizer([param.twin for param in self.parameters[:first]], **self.variant.make())
        self.build(self.variant.make())

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
        pairs = list(zip(self.draw.params[start:end], self.parameters[start:end], strict=True))
        for param, made in reversed(pairs) if reverse else pairs:
            named[made.name] = made.given
            if param.also and not self.draw.module:
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

    # --- comparing -----------------------------------------------------------------------------------

    def compare(self) -> None:
        """Compare all parameters, bit for bit: the same kernels run on the same values.

        A row's sparse gradients may be added up before or after they are applied, which rounds differently.
        """
        sparse = any(param.table for param in self.draw.params)
        comparison = Comparison(CLOSE_FP64 if sparse else EXACT, self.subject.bound)
        self.arena.compare(comparison, self.number)
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
                    comparison.step(self.number, {name: tensor.grad.to_dense()}, {name: wanted})
        comparison.raise_first()

    @torch.no_grad()
    def start_from_reference(self) -> None:
        """Give the subject's tensors the reference's values."""
        for param in self.parameters:
            for tensor, index in param.pieces:
                tensor.copy_(param.twin[index])


def _spec(param: g.Param) -> Spec:
    geometry = None if param.cut is None else _geometry(param.cut)
    return Spec(param.shape, geometry, param.dim, param.layout, not param.frozen)


def _geometry(cut: tuple[tuple[int, int], ...]) -> Geometry:
    """Return a geometry that cuts as the draw does."""

    def blocks(shape: tuple[int, ...], dim: int, size: int) -> list[Block]:
        return along(shape, dim, [owner for owner, _ in cut], [length for _, length in cut])

    return blocks
