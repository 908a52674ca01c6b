"""The module that has the parameters of a model, for the subject's tools, and its uncut twin."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from everyrank.model.counts import count
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.comparison import check
from everyrank.suites.moves.model import put
from everyrank.suites.sharded_optimizer.arena import Arena, pieces_of
from everyrank.suites.sharded_optimizer.model import Model, Param
from torch import nn
from torch.distributed._shard.sharded_tensor import ShardedTensor


class Home:
    """A module, some of whose parameters the subject's tool has cut."""

    def __init__(self, arena: Arena, made_of: Model) -> None:
        self.arena, self.made_of = arena, made_of
        self.ours, self.twin = nn.Module(), nn.Module()
        uncut_values = arena.another()
        for param in made_of.params:
            plain = replace(param, cut=None, geometry="", frozen=False) if param.tool else param
            made = uncut_values.make([plain], made_of.torch_dtype)[0]
            made.twin.requires_grad_(False)
            uncut = nn.Parameter(made.twin, requires_grad=not param.frozen)
            own = made.given
            if not isinstance(own, ShardedTensor):
                own = nn.Parameter(own.detach(), requires_grad=not param.frozen)
            for name in param.names:
                put(self.ours, name, own)
                put(self.twin, name, uncut)
        for param in made_of.params:
            if param.tool:
                with subject_acts(f"cutting {param.name} into {arena.size} chunks along dim {param.dim}"):
                    arena.tool("shard_parameter")(self.ours, param.name, arena.spec(param.dim))

    def adopt(self) -> None:
        """Give the arena the parameters, as the subject's tool names them."""
        values, twins = self.named_parameters("parameters"), dict(self.twin.named_parameters())
        for param in self.made_of.params:
            name = param.name if param.name in twins else param.also
            made = self.arena.adopt(name, values[name], twins[name])
            for tensor, _ in made.pieces:
                requires = "requires" if tensor.requires_grad else "does not require"
                check(tensor.requires_grad != param.frozen, f"{name} {requires} grad after sharding")

    def named_parameters(self, called: str, prefix: str = "", recurse: bool = True) -> dict[str, Any]:
        """Return the parameters of the module as the subject's tool names them, and check them."""
        arguments: dict[str, Any] = ({"prefix": prefix} if prefix else {}) | ({} if recurse else {"recurse": False})
        with subject_acts():
            found = list(self.arena.tool("named_parameters")(self.ours, **arguments))
        listed = sorted(name for name, _ in found)
        twice = sorted({name for name in listed if listed.count(name) > 1})
        check(not twice, f"named twice: {', '.join(twice)}")
        wanted = sorted(name for name, _ in self.twin.named_parameters(**arguments))
        check(listed == wanted, f"the {called} are {listed}, those of the model {wanted}")
        values = dict(found)
        for param in self.made_of.params:
            own, *others = (functools.reduce(getattr, name.split("."), self.ours) for name in param.names)
            check(all(other is own for other in others), f"sharding has untied {param.also}")
            for path in (f"{prefix}.{name}" if prefix else name for name in param.names):
                if path in values:
                    self._check_kind(param, path, values[path], own)
        return values

    def _check_kind(self, param: Param, path: str, value: Any, own: Any) -> None:
        """Check that a parameter is cut if it is to be, and the module's own if not."""
        check(isinstance(value, ShardedTensor) != param.whole, f"{path} is a {type(value).__name__}")
        if param.whole:
            check(value is own, f"{path} is not the model's own parameter")
            return
        check(tuple(value.size()) == param.shape, f"{path} is of {tuple(value.size())}, not {param.shape}")
        held = len(pieces_of(value))
        check(held == 1 or not param.tool, f"{path} has {count(held, 'shard')} on rank {self.arena.rank}")
