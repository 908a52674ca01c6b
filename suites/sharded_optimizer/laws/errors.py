"""The laws of ``sharded-optimizer`` about errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from everyrank.fixtures import failing
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.comparison import check
from everyrank.suites.engine.contract import Point
from everyrank.suites.errors import Deviation
from everyrank.suites.sharded_optimizer.arena import SGD, Arena, Parameter
from everyrank.suites.sharded_optimizer.contract import CONTRACT
from everyrank.suites.sharded_optimizer.model import Param

law = CONTRACT.law

#: A learning rate that torch.optim refuses; no other text contains this number.
_REFUSED = -17.5

#: The faults on one rank, each with the text that every rank's error must contain. Two need a class that torch lacks.
_CAUSES = {
    "construction": str(_REFUSED),
    "step": failing.MESSAGE,
    "after-step": failing.MESSAGE,
    "gradient": "sparse",
    "second-step": "sparse",
    "closure": failing.MESSAGE,
    "unpicklable": failing.MESSAGE,
    "unprintable": "UnprintableError",
}
_CLASSES = {
    "step": failing.FailsOnStep,
    "after-step": failing.FailsAfterStep,
    "gradient": torch.optim.Adam,
    "second-step": torch.optim.Adam,
}
_CLOSURE_ERRORS = {
    "closure": failing.InjectedError,
    "unpicklable": failing.UnpicklableError,
    "unprintable": failing.UnprintableError,
}
_CORE = {"construction", "step", "closure", "gradient"}


@dataclass(frozen=True, kw_only=True)
class FaultPoint(Point):
    """A point with a fault, and the rank that has it."""

    fault: str
    victim: int


def _faults() -> Iterator[FaultPoint]:
    for fault in _CAUSES:
        for size, victim in ((3, 1), (3, 0), (3, 2), (2, 1)):
            core = fault in _CORE and (size, victim) == (3, 1)
            yield FaultPoint(f"{fault}-rank{victim}", size, core=core, fault=fault, victim=victim)


@law("errors.rank", _faults)
def on_a_rank(arena: Arena, point: FaultPoint) -> None:
    """An error on one rank is soon raised on all ranks; its text names the rank and contains the text of the cause.

    The rank that is named nearest to the cause, always before it or always behind it, is the one that failed. A rank
    that raises the error of another may also name itself.
    If the cause cannot be printed, the name of its class is enough. `step` and `after-step` fail in an optimizer
    class that torch does not have: a subject that refuses such a class with NotImplementedError lacks them.
    """
    fault, victim = point.fault, point.victim
    # With a closure no parameter is whole: after an error that is not passed on, others would wait for its gradient.
    cut = Param("second", (5,), geometry="chunked") if fault in _CLOSURE_ERRORS else Param("second", (4,))
    parameters = arena.make([Param("first", (7, 3), geometry="chunked"), cut])
    text = _error_text(_sabotaged(arena, parameters, fault, victim))
    texts = arena.meet("the end of the sabotaged step", text)
    for rank, text in enumerate(texts):
        check(bool(text), f"rank {rank} heard nothing of the error on rank {victim}")
        check(f"rank {victim}" in text, f"the error on rank {rank} does not name rank {victim}: {text}")
        check(_CAUSES[fault] in text, f"the error on rank {rank} does not name the cause: {text}")
        near = names_beside(_CAUSES[fault], victim, text, rank)
        check(near, f"the error on rank {rank} names another rank than rank {victim} beside the cause: {text}")


def names_beside(cause: str, victim: int, text: str, rank: int) -> bool:
    """Return whether each mention of the cause directly follows the victim's number, or each directly precedes it."""

    def named(part: str) -> list[str]:
        return [number for number in re.findall(r"rank (\d+)", part) if number == str(victim) or number != str(rank)]

    parts = text.split(cause)
    heads = [cause.join(parts[:number]) for number in range(1, len(parts))]
    tails = [cause.join(parts[number:]) for number in range(1, len(parts))]
    wanted = [str(victim)]
    return all(named(head)[-1:] == wanted for head in heads) or all(named(tail)[:1] == wanted for tail in tails)


def _sabotaged(arena: Arena, parameters: Sequence[Parameter], fault: str, victim: int) -> Callable[[], None]:
    fails = arena.rank == victim

    def act() -> None:
        if fault == "construction":
            arena.build(SGD, parameters, lr=_REFUSED if fails else 0.1)
            return
        keywords = {"only": victim} if fault in ("step", "after-step") else {}
        with subject_acts():
            ours = arena.build(_CLASSES.get(fault, SGD), parameters, lr=0.1, **keywords)
        last = 2 if fault == "second-step" else 1
        for number in range(1, last + 1):
            arena.give_gradients(parameters, number)
            if fault in ("gradient", "second-step") and fails and number == last:
                for tensor, _ in parameters[0].pieces:
                    assert tensor.grad is not None
                    tensor.grad = tensor.grad.to_sparse()
            ours.step(*((_closure(_CLOSURE_ERRORS[fault] if fails else None),) if fault in _CLOSURE_ERRORS else ()))

    return act


def _closure(error: Callable[[str], Exception] | None) -> Callable[[], torch.Tensor]:
    def evaluate() -> torch.Tensor:
        if error is not None:
            raise error(failing.MESSAGE)
        return torch.ones(())

    return evaluate


def _error_text(act: Callable[[], None]) -> str:
    """Return the text of the error that this rank gets, or an empty text."""
    try:
        act()
    except Deviation:
        raise
    except Exception as error:
        try:
            return f"{type(error).__name__}: {error}"
        except Exception:  # the error cannot be printed
            return type(error).__name__
    return ""
