"""The draws of ``replicate``: a model, the options that it is built with, and the actions on it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from everyrank.suites.arena.groups import NAMES_RANKS
from everyrank.suites.engine.subject import Subject
from everyrank.suites.generate.grammar import Grammar


@dataclass(frozen=True)
class Param:
    """One parameter. If its name has dots, it is in a submodule."""

    name: str
    shape: tuple[int, ...]
    layout: str = "plain"
    """plain, transposed, gaps (its elements do not lie side by side), shared (one storage for all of this layout) or
    embedding, whose gradients are sparse."""
    dtype: str = "float64"
    frozen: bool = False
    also: str = ""
    """A second name of the same parameter."""


@dataclass(frozen=True)
class Buffer:
    """One buffer of the whole module. One of int64 counts the forwards in training."""

    name: str
    dtype: str
    gaps: bool = False


@dataclass(frozen=True)
class Backward:
    """Run forwards and backwards, each on its own rows.

    ``skips``: these parameters go unused on the ranks ``skipped_by``. ``rowless``: these ranks have no rows.
    """

    synced: bool = True
    times: int = 1
    skips: tuple[int, ...] = ()
    skipped_by: tuple[int, ...] = ()
    rowless: tuple[int, ...] = ()


@dataclass(frozen=True)
class Step:
    """Do one step of the optimizer."""


@dataclass(frozen=True)
class Clear:
    """Clear all gradients."""

    set_to_none: bool = True


@dataclass(frozen=True)
class Give:
    """Set the gradients of these parameters by hand; if ``own``, to a different value on each rank."""

    to: tuple[int, ...]
    own: bool = False


@dataclass(frozen=True)
class Freeze:
    """Clear a parameter's gradient and freeze it, or thaw it."""

    param: int
    frozen: bool = True


@dataclass(frozen=True)
class Replace:
    """Replace a parameter by a new one with the same values, and make a new optimizer."""

    param: int


@dataclass(frozen=True)
class SetRate:
    """Change the learning rate of the optimizer's first group."""

    lr: float


@dataclass(frozen=True)
class AddGroup:
    """Add the next parameters, which the optimizer did not have, as a group with its own learning rate."""

    count: int
    lr: float


@dataclass(frozen=True)
class SetBuffers:
    """Give each rank its own values in all buffers; if ``reassigned``, as new tensors."""

    reassigned: bool = False


@dataclass(frozen=True)
class Evaluate:
    """Run one forward in eval, without gradients."""


@dataclass(frozen=True)
class Save:
    """Copy the state dicts of module and optimizer; if ``inside``, that of the module inside of the wrapper."""

    inside: bool = False


@dataclass(frozen=True)
class Load:
    """Load the last copy into the same objects, or into fresh ones."""

    fresh: bool = False


@dataclass(frozen=True)
class WrongDevice:
    """Build a module like this with an invalid ``device_id``, which must be refused."""


@dataclass(frozen=True)
class Uneven:
    """Train fresh objects under ``join()``, with these numbers of batches on the ranks."""

    batches: tuple[int, ...]


@dataclass(frozen=True)
class Fail:
    """Take fresh objects; let one rank fail in its ``forward`` or ``backward`` and leave, or be ``idle`` and stay."""

    rank: int
    during: str


Action = (
    Backward
    | Step
    | Clear
    | Give
    | Freeze
    | Replace
    | SetRate
    | AddGroup
    | SetBuffers
    | Evaluate
    | Save
    | Load
    | WrongDevice
    | Uneven
    | Fail
)


@dataclass(frozen=True)
class Draw:
    """A model, the options for building it, an optimizer over its first parameters, and actions."""

    size: int
    params: tuple[Param, ...]
    actions: tuple[Action, ...]
    buffers: tuple[Buffer, ...] = ()
    optimizer: str = "SGD"
    """SGD, momentum or Adam."""
    first: int = 8
    """How many of ``params`` the optimizer is built with; the others may be added as groups."""
    option: str = ""
    """small-buckets, bucket-view, static-graph, device or own-buffers."""
    apart: bool = False
    """Whether each submodule is replicated separately, instead of the whole module."""
    ignored: str = ""
    """A submodule that is not replicated."""
    equal_at_once: bool = True
    """Whether values are compared as soon as the module is built; otherwise from the first forward on."""


#: A feature is not drawn if an entry of the subject's ledger or of its lacks matches these cases.
FEATURES = {
    "values as they are built": "init.sync[built-*]",
    "small buckets": "parity.options[small-buckets-*]",
    "bucket views": "parity.options[bucket-view-*]",
    "static graphs": "parity.options[static-graph-*]",
    "mixed dtypes": "parity.options[mixed-dtypes-*]",
    "submodules": "parity.submodules[several-*]",
    "transposed parameters": "mean[non-contiguous-*]",
    "parameters with gaps": "mean[gaps-*]",
    "shared storage": "mean[views-*]",
    "large parameters": "mean[large-*]",
    "complex parameters": "mean[complex-*]",
    "sparse gradients": "mean[*sparse*]",
    "backwards without sync": "accumulate[parts*]",
    "static graphs that begin without sync": "accumulate[static-graph-unsynced-*]",
    "unused parameters": "unused[*]",
    "frozen parameters": "frozen[stays-*]",
    "thawed parameters": "frozen[thawed-*]",
    "tied parameters": "tied[*]",
    "replaced parameters": "rewrap[*]",
    "buffers": "buffers[train-*]",
    "buffers in evaluation": "buffers[eval-*]",
    "reassigned buffers": "buffers[reassigned-*]",
    "own buffers": "buffers[refused-*]",
    "ignored modules": "ignored[*]",
    "devices": "device-id[cpu-*]",
    "wrong devices": "device-id[wrong-*]",
    "state dicts of what was built": "state-dict[plain-*]",
    "uneven inputs": "uneven[last-fewer-*]",
    "idle ranks": "uneven[last-idle-*]",
    "errors": "errors.rank[*]",
}


def _strategy(size: int, features: frozenset[str]) -> Any:
    from everyrank.suites.replicate.drawing import draws

    return draws(size, features)


def _carry_out(subject: Subject, draw: Draw) -> Iterator[None]:
    from everyrank.suites.replicate.carrying_out import ReplicatePlayer

    yield from ReplicatePlayer(subject, draw).play()


GRAMMAR = Grammar(
    module="everyrank.suites.replicate.grammar",
    kinds=(
        *(Draw, Param, Buffer, Backward, Step, Clear, Give, Freeze, Replace, SetRate, AddGroup),
        *(SetBuffers, Evaluate, Save, Load, WrongDevice, Uneven, Fail),
    ),
    sizes=(3,),
    features=FEATURES,
    claims={NAMES_RANKS: frozenset({"errors", "idle ranks"})},
    strategy=_strategy,
    carry_out=_carry_out,
)
