"""What a script of ``sharded-optimizer`` has done so far, as plain data, and what a model needs of a subject."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from everyrank.fixtures.optimizers import row
from everyrank.suites.moves.model import ModelOutline
from everyrank.suites.moves.options import defaults_of, further
from everyrank.suites.sharded_optimizer.model import Model, Param

#: A subject is not asked for a feature if an entry of its ledger or of its lacks matches these cases.
FEATURES = {
    "whole parameters": "parity.whole[*]",
    "gradients of some ranks": "parity.whole[*]",
    "ranks without a shard": "parity.geometry[*-without-shard-SGD-*]",
    "optimizers that look at the whole tensor": "parity.whole-tensor[*]",
    "subclasses": "parity.subclass[*]",
    "subclasses that look at the whole tensor": "parity.whole-tensor[*-subclass-*]",
    "sparse gradients": "parity.embeddings[*]",
    "repeated rows": "parity.shard[*-repeated-rows-*]",
    "missing gradients": "grad.none[*]",
    "zero_grad": "grad.zero[*]",
    "bf16": "parity.shard[SGD-bf16-*]",
    "complex parameters": "parity.shard[SGD-complex-*]",
    "closures": "closure[SGD-*]",
    "clipping": "clip[*]",
    "groups": "state.groups[SGD-*]",
    "groups that a rank refuses": "state.groups[SGD-*]",
    "saves and loads": "state.round-trip[*SGD-*]",
    "modules": "names[nested-*]",
    "bare shards in modules": "names[bare-*]",
    "prefixes": "names[*prefix-*]",
    "names without recursion": "names[top-only-*]",
    "frozen parameters": "frozen[*]",
    "tied parameters": "tied[*]",
    "parts besides the step": "surface[*]",
    "errors": "errors.rank[construction-*]",
    "errors in closures": "errors.rank[closure-*]",
    "errors in a class of the user's own": "errors.rank[step-*]",
}

#: Options that are changed by hand.
OPTIONS = ("lr", "weight_decay", "maximize", "betas")


@dataclass
class Outline(ModelOutline[Model]):
    """The facts on which it depends whether a move makes sense, and what it needs."""

    handed: int = field(init=False)
    """How many parameters the optimizer has."""
    groups: int = 1
    saved: bool = False
    differ: bool = False
    """Whether gradients differ between ranks, or did before a step: then no further step is defined."""
    clamped: bool = False
    """Whether a hook clamps the gradients of each rank before each step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.handed = min(self.model.first, self.count)

    @property
    def trained(self) -> list[int]:
        return [number for number in range(self.count) if number not in self.frozen]

    @property
    def hookable(self) -> bool:
        """Whether it is defined what a hook makes of gradients before a step."""
        return not (self.tables or self.differ or self.model.subclass)

    @property
    def tables(self) -> bool:
        return any(param.table for param in self.model.params)

    @property
    def wholes(self) -> bool:
        """Whether a trained parameter is whole."""
        return any(self.model.params[number].cut is None for number in self.trained)

    @property
    def closures_only(self) -> bool:
        return "closure" in row(self.model.optimizer).needs

    @property
    def casts(self) -> bool:
        """Whether torch.optim's own load_state_dict casts a part of the state, so that it goes on otherwise."""
        model = self.model
        of_fp32 = model.optimizer == "NAdam" or (model.optimizer == "ASGD" and model.variant.startswith("tensor-lr"))
        return of_fp32 and model.dtype != "float32"

    @property
    def apart(self) -> bool:
        """Whether each rank steps what it has, and meets no other rank for that."""
        needs = row(self.model.optimizer).needs
        whole = bool(self.model.subclass) or "whole-tensor" in needs
        return not whole and all(param.cut is not None for param in self.model.params)

    @property
    def empty(self) -> bool:
        """Whether a parameter has no elements: torch has no infinity norm of it."""
        return any(0 in param.shape for param in self.model.params)

    @property
    def options(self) -> Sequence[str]:
        """The options that can be changed. No optimizer adds a weight decay to a sparse gradient."""
        kind: Any = row(self.model.optimizer).optimizer
        known = defaults_of(kind).keys() - ({"weight_decay"} if self.tables else set())
        return [name for name in OPTIONS if name in known]

    @property
    def further(self) -> Sequence[str]:
        """Further options that can be changed; of a table, no sparse gradient takes them."""
        return [] if self.tables else further(row(self.model.optimizer).optimizer)


def needed_by(param: Param, model: Model) -> Iterator[str]:
    """Yield the features that a parameter needs in a model."""
    if param.cut is None:
        yield "whole parameters"
    elif {owner for owner, _ in param.cut} != set(range(model.size)):
        yield "ranks without a shard"
    dtype = param.dtype or model.dtype
    if dtype in ("bfloat16", "float16"):
        yield "bf16"
    if dtype.startswith("complex"):
        yield "complex parameters"
    if model.module:
        yield "modules"
        if param.cut is not None and not param.tool:
            yield "bare shards in modules"
    found = {"frozen parameters": param.frozen, "tied parameters": bool(param.also), "sparse gradients": param.table}
    yield from (feature for feature, needed in found.items() if needed)
    if param.tool and any(length == 0 for _, length in param.cut or ()):
        yield "ranks without a shard"
