"""The draws of ``trainer``: a model, how it is built on each rank, an optimizer with its groups, and the actions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from everyrank.fixtures.optimizers import rows
from everyrank.suites.arena.groups import NAMES_RANKS
from everyrank.suites.engine.subject import Subject
from everyrank.suites.generate.grammar import Grammar
from everyrank.suites.trainer.arena import SAME_GRAPH, TRUSTS_INIT


@dataclass(frozen=True)
class Param:
    """One parameter besides those of the layers. If its name has dots, it is in a submodule."""

    name: str
    shape: tuple[int, ...]
    layout: str = "plain"
    """plain, transposed, gaps (its elements do not lie side by side), shared (one storage for all of this layout) or
    embedding, whose gradients are sparse."""
    dtype: str = "float64"
    frozen: bool = False
    also: str = ""
    """A second name of the same parameter."""
    unused: bool = False
    """Whether no forward ever uses it."""


@dataclass(frozen=True)
class Group:
    """The next parameters in a group, with its own options, if any; the first group has the layers too."""

    count: int
    lr: float | None = None
    weight_decay: float | None = None


@dataclass(frozen=True)
class Step:
    """Train for one step, or for several, each on microbatches of its own.

    ``skips``: these parameters go unused on the ranks ``skipped_by``. ``rows``: how many rows a microbatch of each
    rank has. ``spoiled``: the targets of rank ``by`` are this value, inf or nan. ``waits``: nothing may change a
    while after.
    """

    times: int = 1
    parts: int = 1
    max_norm: float = 0.0
    skips: tuple[int, ...] = ()
    skipped_by: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    spoiled: str = ""
    by: int = 0
    waits: bool = False


@dataclass(frozen=True)
class Save:
    """Copy the state, which replaces the last copy."""


@dataclass(frozen=True)
class Load:
    """Load the last copy into the same trainer, or into a fresh one of another model.

    ``reordered``: the fresh model has registered its parameters in the opposite order. ``of_first``: every rank
    loads the copy of rank 0.
    """

    fresh: bool = False
    reordered: bool = False
    of_first: bool = False


@dataclass(frozen=True)
class AddGroup:
    """Add the next parameters, which no group has yet, as a group."""

    group: Group


@dataclass(frozen=True)
class Freeze:
    """Freeze a parameter, or thaw it."""

    param: int
    frozen: bool = True


@dataclass(frozen=True)
class SetRate:
    """Multiply the learning rate of one of the groups, or of all if there is none of this number."""

    factor: float
    group: int = -1


@dataclass(frozen=True)
class Schedule:
    """Attach a scheduler, which multiplies the rates after each step until a state is loaded."""

    gamma: float


@dataclass(frozen=True)
class Fail:
    """Take a fresh trainer and a process group of its own; let the loss raise on one rank in the second step."""

    rank: int


@dataclass(frozen=True)
class Refuse:
    """Build a fresh trainer with the invalid arguments of this number, which must be refused."""

    invalid: int


@dataclass(frozen=True)
class WrongState:
    """Load a state with one entry that is missing, extra or misshapen into a fresh trainer, which must refuse it."""

    part: str
    """model or optimizer."""
    mutation: str


@dataclass(frozen=True)
class Reshard:
    """Train and save on the first ``before`` ranks, load on the first ``after`` ranks, and go on there."""

    before: int
    after: int


Action = (
    Step | Save | Load | AddGroup | Freeze | SetRate | Schedule | Fail | Refuse | WrongState | Reshard
)  # fmt: skip


@dataclass(frozen=True)
class Draw:
    """A model, the differences between the ranks at the start, an optimizer and actions."""

    size: int
    actions: tuple[Action, ...]
    layers: tuple[int, ...] = ()
    """The widths between the linear layers; without one there is one layer."""
    params: tuple[Param, ...] = ()
    buffer: bool = False
    optimizer: str = "SGD"
    variant: str = "lr"
    groups: tuple[Group, ...] = ()
    """The groups that the trainer is built with; without one it is built without groups."""
    own_values: bool = False
    """Whether each rank has built other parameters; those of rank 0 count."""
    own_buffer: bool = False
    reordered: tuple[int, ...] = ()
    """Ranks that have registered their parameters in the opposite order."""
    losses: bool = True
    """Whether the loss that a step returns is compared."""


#: The parts and mutations of a wrong state. An optimizer's entry that is missing may be taken for one that never was.
WRONG_STATES = tuple(
    (part, mutation)
    for part, mutations in (
        ("model", ("missing", "extra", "misshapen")),
        ("optimizer", ("extra", "misshapen")),
    )
    for mutation in mutations
)

#: Optimizers that are drawn. SparseAdam takes no dense gradients; Muon orthogonalizes in bf16, where the order of a
#: sum decides how a number is rounded.
OPTIMIZERS = tuple(row for row in rows() if not row.needs & {"sparse", "2d"})

#: A feature is not drawn if an entry of the subject's ledger or of its lacks matches these cases.
FEATURES = {
    "own values": "init.sync[trained-*]",
    "own frozen values": "init.sync[built-frozen-*]",
    "own buffers": "init.sync[buffers-*]",
    "orders of registration": "in-order[*]",
    "any width": "parity.models[equal-shapes-*]",
    "branches": "equal[unused-*]",
    "parameters of no layer": "parity.models[unused-ws*]",
    "frozen parameters": "parity.models[frozen-*]",
    "thawed parameters": "parity.models[thawed-*]",
    "tied parameters": "parity.models[tied-*]",
    "unused parameters": "parity.models[unused-ws*]",
    "parameters that some ranks use": "parity.models[unused-on-*]",
    "parameters that no rank uses later": "parity.models[unused-later-*]",
    "scalars": "parity.models[scalars-*]",
    "empty parameters": "parity.models[empty-*]",
    "few rows": "parity.models[few-rows-*]",
    "transposed parameters": "parity.models[non-contiguous-*]",
    "parameters with gaps": "parity.models[gaps-*]",
    "shared storage": "parity.models[views-*]",
    "mixed dtypes": "parity.models[mixed-dtypes-*]",
    "complex parameters": "parity.models[complex-*]",
    "buffers": "parity.models[buffers-*]",
    "sparse gradients": "parity.sparse[*]",
    "closures": "parity.closure[*]",
    "losses": "loss[*]",
    "rows": "mean[*]",
    "microbatches": "accumulate[parts*]",
    "sparse microbatches": "accumulate[sparse-*]",
    "microbatches of some ranks": "accumulate[unused-*]",
    "clipping": "clip[cut-*]",
    "clipping of microbatches": "clip[accumulated-*]",
    "clipping of frozen parameters": "clip[frozen-*]",
    "clipping of tied parameters": "clip[tied-*]",
    "clipping of unused parameters": "clip[unused-*]",
    "clipping of mixed dtypes": "clip[mixed-dtypes-*]",
    "infinity": "non-finite[inf-ws*]",
    "nan": "non-finite[nan-*]",
    "clipped infinity": "non-finite[inf-clipped-*]",
    "groups": "parity.groups[SGD-groups-*]",
    "added groups": "parity.groups[added-*]",
    "schedulers": "parity.schedule[*]",
    "changed rates": "alias[*]",
    "late changes": "late[*]",
    "states": "state.round-trip[rate-*]",
    "states in between": "state.inert[between-*]",
    "states of fresh trainers": "state.inert[fresh-*]",
    "states of tied parameters": "state.round-trip[tied-*]",
    "states of frozen parameters": "state.round-trip[frozen-*]",
    "states of unused parameters": "state.round-trip[unused-*]",
    "states of buffers": "state.round-trip[buffers-*]",
    "states in another order": "state.in-order[*]",
    "states of the first rank": "state.reshard[*]",
    "errors": "errors.rank[*]",
    "invalid arguments": "errors.arguments[SGD-*]",
    **{f"{part} states, {mutation}": f"state.strict[{part}-{mutation}-*]" for part, mutation in WRONG_STATES},
    **{row.name: f"parity.train[{row.name}-defaults-*]" for row in OPTIMIZERS if "closure" not in row.needs},
    **{
        f"states of {row.name}": f"state.round-trip[{row.name}-*]" for row in OPTIMIZERS if "closure" not in row.needs
    },
}


def _strategy(size: int, features: frozenset[str]) -> Any:
    from everyrank.suites.trainer.drawing import draws

    return draws(size, features)


def _carry_out(subject: Subject, draw: Draw) -> Iterator[None]:
    from everyrank.suites.trainer.carrying_out import carry_out

    yield from carry_out(subject, draw)


GRAMMAR = Grammar(
    module="everyrank.suites.trainer.grammar",
    kinds=(
        *(Draw, Param, Group, Step, Save, Load, AddGroup, Freeze, SetRate, Schedule),
        *(Fail, Refuse, WrongState, Reshard),
    ),
    sizes=(3,),
    features=FEATURES,
    claims={NAMES_RANKS: frozenset({"errors"})},
    choices={
        TRUSTS_INIT: frozenset({"own values", "own frozen values", "own buffers", "orders of registration"}),
        SAME_GRAPH: frozenset({"parameters that some ranks use", "microbatches of some ranks"}),
    },
    strategy=_strategy,
    carry_out=_carry_out,
)
