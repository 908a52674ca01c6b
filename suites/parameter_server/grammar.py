"""The draws of ``parameter-server``: a model, its optimizer, trainers near and far, and their reports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from everyrank.fixtures.optimizers import every
from everyrank.suites.engine.subject import Subject
from everyrank.suites.generate.grammar import Grammar
from everyrank.suites.parameter_server import wrong_gradients
from everyrank.suites.parameter_server.points import AGENT, EXCLUDED, ServerPoint


@dataclass(frozen=True)
class Param:
    """One parameter. If its name has dots, it is in a submodule."""

    name: str
    shape: tuple[int, ...]
    layout: str = "plain"
    """plain, transposed, gaps (its elements do not lie side by side) or shared (one storage for all such)."""
    dtype: str = "float64"
    frozen: bool = False
    sparse: bool = False
    """Whether its gradients are sparse."""
    also: str = ""
    """A second name of the same parameter."""


@dataclass(frozen=True)
class Wrong:
    """A wrong report of one trainer: its list of gradients is wrong, or the gradient of one parameter."""

    trainer: int
    defect: str
    """A name in ``wrong_gradients``."""
    param: int = 0
    before: int = 0
    """How many others have reported before."""


@dataclass(frozen=True)
class Round:
    """Do rounds in which the trainers report in this order, and are all answered after the last report.

    ``missing``: pairs of a trainer and a parameter for which it reports None. ``wrong``: reports of the first round
    that are refused, before the trainer's own. ``taken``: values that are not finite, which the server takes.
    ``spoiler``: a trainer that overwrites tensors, as ``spoils`` states: its ``answer``, its gradients as soon as it
    has reported (``reported``), or its gradients when it is answered (``gradients``). ``large``: gradients are large.
    """

    order: tuple[int, ...]
    times: int = 1
    missing: tuple[tuple[int, int], ...] = ()
    wrong: tuple[Wrong, ...] = ()
    taken: tuple[Wrong, ...] = ()
    spoiler: int = 0
    spoils: str = ""
    large: bool = False


@dataclass(frozen=True)
class Expire:
    """Begin a round in which only these trainers report: all of them get an error in time."""

    reporters: tuple[int, ...]


@dataclass(frozen=True)
class Meet:
    """Stop one report of a round at a line of the server, until the next has been made or waits for a lock.

    ``first``: the position in ``order`` of the report that stops.
    """

    order: tuple[int, ...]
    first: int
    line: int


@dataclass(frozen=True)
class Overlap:
    """Do two rounds: the update of the first stops at this line, until trainer ``late`` has reported for the second.

    Line 0 is before the optimizer's step; later ones are lines of the server.
    """

    order: tuple[int, ...]
    late: int
    line: int = 0


@dataclass(frozen=True)
class AtOnce:
    """Do two rounds: trainer ``late`` reports for the second in the call by which the first answers it."""

    order: tuple[int, ...]
    late: int


Action = Round | Expire | Meet | Overlap | AtOnce


@dataclass(frozen=True)
class Draw:
    """A server with its trainers, and a sequence of actions.

    ``trainers``: None for a thread of the server's process; or the worker from which that trainer reports over RPC,
    which for 0 is the server's own.
    """

    size: int
    params: tuple[Param, ...]
    trainers: tuple[int | None, ...]
    actions: tuple[Action, ...]
    optimizer: str = "SGD"
    """A row of the optimizer table."""
    variant: str = "lr"
    non_finite: bool = False
    """Whether the server takes values that are not finite."""
    expires: bool = False
    """Whether a round stays open for a short time only."""
    keeps: bool = False
    """Whether answers are compared again after each further action."""
    buffer: bool = False
    """Whether the model has a buffer beside its parameters."""


#: Features of models, each with the model of the table that has it.
_OF_MODELS = {
    "frozen parameters": "frozen",
    "tied parameters": "tied",
    "buffers": "buffers",
    "scalars": "scalars",
    "empty parameters": "empty",
    "transposed parameters": "non-contiguous",
    "parameters with gaps": "gaps",
    "shared storage": "views",
    "mixed dtypes": "mixed-dtypes",
    "complex parameters": "complex",
}


def _features() -> dict[str, str]:
    """Return all features: each is not drawn if the subject's ledger or lacks match such a case."""
    found = {name: f"parity.round*[SGD-momentum-{model}-n2-ws1]" for name, model in _OF_MODELS.items()}
    found |= {
        "sparse gradients": "parity.round*[SGD-lr-sparse-*-n2-ws1]",
        "sparse and dense gradients": "parity.round*[SGD-momentum-partly-sparse-n2-ws1]",
        "trainers on other workers": "parity.round*[SGD-momentum-rpc-n*]",
        "many trainers": "parity.round*[SGD-momentum-n7-ws1]",
        "missing gradients": "none[*]",
        "missing gradients of all": "clean-round[none-of-all-*]",
        "large gradients": "clean-round[large-*]",
        "values that are not finite": "errors.gradient[*-taken-n2-ws1]",
        "expired rounds": "errors.dead-trainer[*]",
        "reports that meet": "lost-update[*]",
        "reports during updates": "overlap[updated-*]",
        "reports during answers": "overlap[answered-*]",
        "answers that are kept or changed": "alias[answer-*]",
        "gradients changed once reported": "alias[gradients-n*]",
        "gradients changed once answered": "alias[gradients-later-*]",
    }
    found |= {
        f"refuses {name}": f"errors.gradient[{name}-*]" for name in (*wrong_gradients.ONE, *wrong_gradients.ALL)
    }
    for row, variant in every(EXCLUDED):
        found[f"{row.name} {variant.name}"] = f"parity.round*[{row.name}-{variant.name}-n3-ws1]"
        if variant.name == "defaults" and "sparse" not in row.needs:
            found[f"{row.name} in float32"] = f"parity.round*[{row.name}-defaults-fp32-n3-ws1]"
            found[f"{row.name} with missing gradients"] = f"none[{row.name}-defaults-*]"
    return found


def _strategy(size: int, features: frozenset[str]) -> object:
    from everyrank.suites.parameter_server.drawing import draws

    return draws(size, features)


def _carry_out(subject: Subject, draw: Draw) -> Iterator[None]:
    from everyrank.suites.parameter_server.carrying_out import ServerPlayer

    yield from ServerPlayer(subject, draw).play()


GRAMMAR = Grammar(
    module="everyrank.suites.parameter_server.grammar",
    kinds=(Draw, Param, Round, Wrong, Expire, Meet, Overlap, AtOnce),
    sizes=(3,),
    features=_features(),
    strategy=_strategy,
    carry_out=_carry_out,
    driven=True,
    fixtures=AGENT,
    point=partial(ServerPoint, trainers=2, far=True),
)
