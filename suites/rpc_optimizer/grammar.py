"""The draws of ``rpc-optimizer``: parameters on their owners, optimizers over some of them, and actions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from everyrank.fixtures.optimizers import Row, Variant, rows
from everyrank.suites.engine.subject import Subject
from everyrank.suites.generate.grammar import Grammar
from everyrank.suites.rpc_optimizer.besides import PARTS


@dataclass(frozen=True)
class Param:
    """One parameter, with its own RRef."""

    owner: int
    shape: tuple[int, ...]
    frozen: bool = False
    sparse: bool = False
    """Whether its gradients are sparse."""
    layout: str = "plain"
    """plain, transposed, or rows: a view of every second row."""
    same_as: int | None = None
    """The number of an earlier parameter, if this is another RRef of its tensor."""


@dataclass(frozen=True)
class Optimizer:
    """One optimizer over some of the parameters, in this order."""

    params: tuple[int, ...]
    name: str = "SGD"
    """A row of the optimizer table."""
    variant: str = "lr"
    own: str = ""
    """A user's class: ``subclass`` changes nothing, ``signed`` takes each gradient's sign and has its base's name,
    ``planted`` can be made to fail or to wait."""
    given: str = "named"
    """How the arguments are given: ``named``, ``positional``, or ``explicit`` with every default by name."""


@dataclass(frozen=True)
class Step:
    """In one context: a backward through each of these sets of parameters, then a step of each of these optimizers.

    No two sets have a common owner, and none has the driver: a second backward of torch's would never return.
    ``again``: each backward is run twice, through the same graph. ``times``: the number of such contexts in a row,
    each with its own data.
    """

    backwards: tuple[tuple[int, ...], ...]
    by: tuple[int, ...] = (0,)
    times: int = 1
    again: bool = False


@dataclass(frozen=True)
class Beside:
    """Open two contexts at the same time, with a backward in each; then do a step for each."""

    older: tuple[int, ...]
    newer: tuple[int, ...]
    by: tuple[int, int] = (0, 0)
    newer_first: bool = False


@dataclass(frozen=True)
class Refused:
    """Do a step with a context that is ``unknown`` or ``closed``: it raises and moves nothing."""

    context: str
    by: int = 0


@dataclass(frozen=True)
class Invalid:
    """Build an optimizer with arguments that torch.optim refuses, without parameters, or with one that is no leaf."""

    optimizer: str
    name: str


@dataclass(frozen=True)
class Sabotage:
    """Do a step of a planted optimizer that fails on some workers, and waits on another until the kit releases it.

    ``foreign``: the error cannot be unpickled.
    """

    by: int
    failing: tuple[int, ...] = ()
    slow: int | None = None
    foreign: bool = False


@dataclass(frozen=True)
class FailBuild:
    """Build an optimizer over these parameters whose constructor fails on one worker."""

    params: tuple[int, ...]
    failing: int


@dataclass(frozen=True)
class Together:
    """Do two steps of planted optimizers that share a parameter, or of one, at the same time: they are serialized."""

    by: tuple[int, int]


@dataclass(frozen=True)
class Renew:
    """Drop all optimizers, so that no owner keeps any, and build them anew."""


@dataclass(frozen=True)
class Use:
    """Use these parts of an optimizer besides its step, as the law ``surface`` does, and do two steps."""

    parts: tuple[str, ...]
    by: int = 0


@dataclass(frozen=True)
class Another:
    """Build one more optimizer, do this many steps through all parameters, and drop it."""

    optimizer: Optimizer
    times: int = 1


Action = Step | Beside | Refused | Invalid | Sabotage | FailBuild | Together | Renew | Use | Another


@dataclass(frozen=True)
class Draw:
    """A model, optimizers over parts of it, and a sequence of actions."""

    size: int
    params: tuple[Param, ...]
    optimizers: tuple[Optimizer, ...]
    actions: tuple[Action, ...]
    dtype: str = "float64"


def drawn_variants(row: Row) -> list[Variant]:
    """Return the variants of an optimizer that can be drawn. A flat list of RRefs has no groups."""
    needs = {"closure", "cuda", "non-leaf"}
    return [
        variant for variant in row.variants if not (row.needs | variant.needs) & needs and not variant.group_arguments
    ]


def _features() -> dict[str, str]:
    """Return all features: each is not drawn if the subject's ledger or lacks match such a case."""
    found = {
        "classes of the user's own": "parity.subclass[*]",
        "parameters of no optimizer": "owned.only[*]",
        "frozen parameters": "none.frozen[*]",
        "missing gradients": "none.later-context[*]",
        "empty contexts": "context.empty[*]",
        "contexts beside each other": "context.own[*]",
        "wrong contexts": "context.invalid[*]",
        "bf16": "parity.dtype[*-bf16-ws2]",
        "errors in steps": "errors.step[*]",
        "errors in several steps": "errors.several[*]",
        "errors that cannot travel": "errors.unpicklable[*]",
        "errors in constructors": "errors.constructor[*]",
        "owners that wait": "wait[*]",
        "steps at the same time": "concurrent.*[*]",
        "dropped optimizers": "clean.rrefs[*]",
        "refuses empty-list": "errors.arguments[empty-list-ws2]",
        "refuses non-leaf": "errors.arguments[non-leaf-ws2]",
    }
    found |= {f"use of {part}": f"surface[{part}-ws2]" for part in PARTS}
    for row in rows():
        name = row.name
        if not drawn_variants(row):
            continue
        if "sparse" in row.takes:
            found[f"{name} with sparse gradients"] = f"parity.sparse[{name}-*]"
        if "sparse" in row.needs:
            continue
        found |= {f"{name} {variant.name}": f"parity.*[{name}-{variant.name}-ws3]" for variant in drawn_variants(row)}
        found[f"{name} positional"] = f"parity.arguments[{name}-positional-ws2]"
        found[f"{name} explicit"] = f"parity.arguments[{name}-explicit-defaults-ws2]"
        found[f"{name} with missing gradients"] = f"none.position[{name}-*]"
        if "complex" in row.takes:
            found[f"{name} complex"] = f"parity.dtype[{name}-complex-ws2]"
            found[f"{name} complex with arguments"] = f"parity.dtype[{name}-complex-everything-ws2]"
        found |= {f"{name} refuses {bad.name}": f"errors.arguments[{name}-{bad.name}-ws2]" for bad in row.invalid}
    return found


def _strategy(size: int, features: frozenset[str]) -> object:
    from everyrank.suites.rpc_optimizer.drawing import draws

    return draws(size, features)


def _carry_out(subject: Subject, draw: Draw) -> Iterator[None]:
    from everyrank.suites.rpc_optimizer.carrying_out import RpcPlayer

    yield from RpcPlayer(subject, draw).play()


GRAMMAR = Grammar(
    module="everyrank.suites.rpc_optimizer.grammar",
    kinds=(
        *(Draw, Param, Optimizer, Step, Beside, Refused, Invalid),
        *(Sabotage, FailBuild, Together, Renew, Use, Another),
    ),
    sizes=(3,),
    features=_features(),
    strategy=_strategy,
    carry_out=_carry_out,
    driven=True,
)
