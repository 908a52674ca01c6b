"""Faults of one rank, and what the errors of all ranks must say of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from everyrank.fixtures import failing
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.comparison import check
from everyrank.suites.errors import Deviation
from everyrank.suites.sharded_optimizer.arena import SGD
from everyrank.suites.sharded_optimizer.sides import Sides

#: A learning rate that torch.optim refuses; no other text contains this number.
_REFUSED = -17.5


@dataclass(frozen=True)
class Fault:
    """What goes wrong on the rank."""

    cause: str
    """The text that every rank's error must contain."""
    optimizer: Any = SGD
    error: Any = None
    """The error that a closure raises."""
    sparse: bool = False
    """Whether the last gradient is sparse, which the optimizer refuses."""
    steps: int = 1

    @property
    def own_class(self) -> bool:
        """Whether it needs a class that torch lacks."""
        return not self.optimizer.__module__.startswith("torch.")


FAULTS = {
    "construction": Fault(str(_REFUSED), steps=0),
    "step": Fault(failing.MESSAGE, failing.FailsOnStep),
    "after-step": Fault(failing.MESSAGE, failing.FailsAfterStep),
    "gradient": Fault("sparse", torch.optim.Adam, sparse=True),
    "second-step": Fault("sparse", torch.optim.Adam, sparse=True, steps=2),
    "closure": Fault(failing.MESSAGE, error=failing.InjectedError),
    "unpicklable": Fault(failing.MESSAGE, error=failing.UnpicklableError),
    "unprintable": Fault("UnprintableError", error=failing.UnprintableError),
}


def error_text(sides: Sides, fault: Fault, rank: int, text: str, message: str = failing.MESSAGE) -> str:
    """Let a rank fail; return the text of the error that this rank gets, or an empty text.

    ``text``: what stands around the message.
    """
    try:
        _fail(sides, fault, rank, failing.AROUND[text].format(message))
    except Deviation:
        raise
    except Exception as error:
        try:
            return f"{type(error).__name__}: {error}"
        except Exception:  # the error cannot be printed
            return type(error).__name__
    return ""


def _fail(sides: Sides, fault: Fault, rank: int, message: str) -> None:
    arena, fails = sides.arena, sides.arena.rank == rank
    named = sides.named(0, len(sides.parameters))

    def evaluate() -> torch.Tensor:
        if fails:
            raise fault.error(message)
        return torch.ones(())

    arena.give_gradients(sides.trained, 1)
    if fault.error is not None:
        sides.ours.step(evaluate)
        return
    if not fault.steps:
        arena.build_over(SGD, named, lr=_REFUSED if fails else 0.1)
        return
    with subject_acts():
        own = {"only": rank, "message": message} if fault.own_class else {}
        ours = arena.build_over(fault.optimizer, named, lr=0.1, **own)
    for left in reversed(range(fault.steps)):
        arena.give_gradients(sides.trained, 2 - left)
        if fault.sparse and fails and not left:
            for tensor, _ in sides.parameters[0].pieces:
                assert tensor.grad is not None
                tensor.grad = tensor.grad.to_sparse()
        ours.step()


def check_errors(texts: Sequence[str], victim: int, cause: str, around: str = "") -> None:
    """Check the texts of all ranks: each names the rank that failed and its cause, and no other rank between them.

    ``around``: what stands around the cause.
    """
    for rank, text in enumerate(texts):
        check(bool(text), f"rank {rank} heard nothing of the error on rank {victim}")
        check(f"rank {victim}" in text, f"the error on rank {rank} does not name rank {victim}: {text}")
        check(cause in text, f"the error on rank {rank} does not name the cause: {text}")
        lost = failing.line_lost(failing.AROUND[around].format(cause), text)
        check(not lost, f"the error on rank {rank} has not all lines of the cause: {lost!r} is lost")
        near = _names_beside(cause, victim, text, rank)
        check(near, f"the error on rank {rank} names another rank than rank {victim} beside the cause: {text}")


def own_message(rank: int) -> str:
    """Return what a rank raises where all of them fail, each with a text of its own."""
    return f"{failing.MESSAGE}, {'once more ' * rank}here"


def check_own_errors(texts: Sequence[str]) -> None:
    """Check the texts of all ranks where each has raised its own message: each names a rank and that rank's cause.

    Of which rank it is, the contract leaves to the subject.
    """
    for rank, text in enumerate(texts):
        check(bool(text), f"rank {rank} heard nothing of the errors on all ranks")
        found = [victim for victim in range(len(texts)) if _names_cause(own_message(victim), victim, text, rank)]
        check(bool(found), f"all ranks fail, and the error on rank {rank} names none of them and its cause: {text}")


def _names_cause(cause: str, victim: int, text: str, rank: int) -> bool:
    return cause in text and f"rank {victim}" in text and _names_beside(cause, victim, text, rank)


def _names_beside(cause: str, victim: int, text: str, rank: int) -> bool:
    """Return whether each mention of the cause directly follows the victim's number, or each directly precedes it."""

    def named(part: str) -> list[str]:
        return [number for number in re.findall(r"rank (\d+)", part) if number == str(victim) or number != str(rank)]

    parts = text.split(cause)
    heads = [cause.join(parts[:number]) for number in range(1, len(parts))]
    tails = [cause.join(parts[number:]) for number in range(1, len(parts))]
    wanted = [str(victim)]
    return all(named(head)[-1:] == wanted for head in heads) or all(named(tail)[:1] == wanted for tail in tails)
