"""The draws of ``sharded-optimizer``: parameters, their cuts, an optimizer, and actions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from everyrank.suites.engine.subject import Subject
from everyrank.suites.generate.grammar import Grammar


@dataclass(frozen=True)
class Param:
    """One parameter. ``cut`` lists rank and length of each block along ``dim``; None for a whole parameter."""

    name: str
    shape: tuple[int, ...]
    cut: tuple[tuple[int, int], ...] | None = None
    dim: int = 0
    layout: str = "plain"
    """For a whole parameter: plain, view or transposed."""
    frozen: bool = False
    tool: bool = False
    """Whether the subject's own shard_parameter cuts it, evenly and in rank order."""
    also: str = ""
    """A second name of the same parameter."""
    table: bool = False
    """Whether its gradients are sparse, as those of a table of embeddings."""


@dataclass(frozen=True)
class Rows:
    """The rows of a table that are looked up, in any order, some of them several times, or none.

    ``ranks`` has those of each rank, or one entry, if all ranks look up the same.
    """

    param: int
    ranks: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Give:
    """Set new gradients for these parameters, and for these rows of tables, and none for the others.

    ``own``: whole parameters get another gradient on each rank, if the subject claims to average them.
    """

    to: tuple[int, ...]
    own: bool = False
    rows: tuple[Rows, ...] = ()


@dataclass(frozen=True)
class Step:
    """Do one step; if ``closure``, with a closure, which sets the gradients itself."""

    closure: bool = False


@dataclass(frozen=True)
class Clear:
    """Call ``zero_grad``, with ``set_to_none`` unless it is None."""

    set_to_none: bool | None = None


@dataclass(frozen=True)
class Clip:
    """Call ``clip_grad_norm_``."""

    most: float
    norm: float


@dataclass(frozen=True)
class AddGroup:
    """Add the next parameters, which the optimizer did not have, as a group with its own options."""

    count: int
    lr: float
    weight_decay: float | None = None


@dataclass(frozen=True)
class SetOption:
    """Change an option of a group by hand, if the subject has ``param_groups``."""

    group: int
    name: str
    value: Any


@dataclass(frozen=True)
class Freeze:
    """Clear a parameter's gradient and freeze it, or thaw it."""

    param: int
    frozen: bool = True


@dataclass(frozen=True)
class Save:
    """Keep a copy of the state dict."""


@dataclass(frozen=True)
class Load:
    """Load the state dict that was kept last, into the same optimizer or into fresh objects.

    ``reverse``: the fresh subject gets the names of each group in reverse order.
    """

    fresh: bool = False
    reverse: bool = False


@dataclass(frozen=True)
class Names:
    """Ask for the named parameters of the module."""

    prefix: str = ""
    recurse: bool = True


@dataclass(frozen=True)
class Use:
    """Use a part of the optimizer besides its step: ``hooks``, with a step, ``defaults``, ``repr``, or a ``copy``."""

    part: str


@dataclass(frozen=True)
class Fail:
    """Let one rank fail during ``construction``, a ``step`` or a ``closure``; then begin again with fresh objects."""

    rank: int
    during: str


Action = Give | Step | Clear | Clip | AddGroup | SetOption | Freeze | Save | Load | Names | Use | Fail


@dataclass(frozen=True)
class Draw:
    """A model, an optimizer over its first parameters, and a sequence of actions."""

    size: int
    params: tuple[Param, ...]
    optimizer: str
    """A row of the optimizer table."""
    actions: tuple[Action, ...]
    variant: str = "defaults"
    subclass: str = ""
    """Of the row's class: ``unchanged``, or ``signed``, a user's own SGD that takes the sign of each gradient."""
    dtype: str = "float64"
    first: int = 8
    """How many parameters the optimizer is built with; the others may come as groups."""
    module: bool = False
    """Whether the parameters are in a module, for the subject's tools."""


#: A feature is not drawn if an entry of the subject's ledger or of its lacks matches these cases.
FEATURES = {
    "whole parameters": "parity.whole[*]",
    "ranks without a shard": "parity.geometry[*-without-shard-*]",
    "optimizers that look at the whole tensor": "parity.whole-tensor[*]",
    "subclasses": "parity.subclass[*]",
    "subclasses that look at the whole tensor": "parity.whole-tensor[*-subclass-*]",
    "sparse gradients": "parity.embeddings[*]",
    "repeated rows": "parity.shard[*-repeated-rows-*]",
    "missing gradients": "grad.none[*]",
    "zero_grad": "grad.zero[*]",
    "closures": "closure[*]",
    "clipping": "clip[*]",
    "groups": "state.groups[*]",
    "saves and loads": "state.round-trip[*]",
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


def _strategy(size: int, features: frozenset[str]) -> Any:
    from everyrank.suites.sharded_optimizer.drawing import draws

    return draws(size, features)


def _carry_out(subject: Subject, draw: Draw) -> Iterator[None]:
    from everyrank.suites.sharded_optimizer.carrying_out import ShardedPlayer

    yield from ShardedPlayer(subject, draw).play()


GRAMMAR = Grammar(
    module="everyrank.suites.sharded_optimizer.grammar",
    kinds=(Draw, Param, Rows, Give, Step, Clear, Clip, AddGroup, SetOption, Freeze, Save, Load, Names, Use, Fail),
    sizes=(3,),
    features=FEATURES,
    strategy=_strategy,
    carry_out=_carry_out,
)
