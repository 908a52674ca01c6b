"""The laws of ``sharded-optimizer`` about errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import torch
from everyrank.fixtures import failing
from everyrank.suites.acts import subject_acts
from everyrank.suites.compare import check
from everyrank.suites.contract import Point
from everyrank.suites.errors import Deviation
from everyrank.suites.sharded_optimizer import points
from everyrank.suites.sharded_optimizer.arena import Arena, Parameter, Spec
from everyrank.suites.sharded_optimizer.laws import CONTRACT, SGD

law = CONTRACT.law

#: A learning rate that torch.optim refuses; no other text holds the number.
_REFUSED = -17.5

#: What goes wrong on one rank, and what every rank's text must hold of it. Only two need a class that torch lacks.
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
_OF_CLOSURES = {
    "closure": failing.InjectedError,
    "unpicklable": failing.UnpicklableError,
    "unprintable": failing.UnprintableError,
}
_CORE = {"construction", "step", "closure", "gradient"}


def _troubles() -> Iterator[Point]:
    for what in _CAUSES:
        for size, victim in ((3, 1), (3, 0), (3, 2), (2, 1)):
            core = what in _CORE and (size, victim) == (3, 1)
            yield points.plain(f"{what}-rank{victim}", size, core=core, what=what, victim=victim)


@law("errors.rank", _troubles)
def on_a_rank(place: Arena, point: Point) -> None:
    """An error on one rank is raised on all of them, in time; its text names the rank, and holds that of the cause.

    The rank that is named nearest to the cause, all before it or all behind it, is the one that failed. A rank that
    hears of it may name itself as well.
    Where the cause cannot be printed, the name of its class is enough. `step` and `after-step` fail in an optimizer
    class that torch does not have: a subject that refuses such a class with NotImplementedError lacks them.
    """
    what, victim = point.values["what"], point.values["victim"]
    # Nothing whole beside a closure: a subject that does not tell would leave the others waiting for its gradient.
    parameters = place.make([Spec((7, 3)), Spec((5,)) if what in _OF_CLOSURES else Spec((4,), None)])
    heard = _heard(_sabotaged(place, parameters, what, victim))
    texts = place.meet("the end of the sabotaged step", heard)
    for rank, text in enumerate(texts):
        check(bool(text), f"rank {rank} heard nothing of the error on rank {victim}")
        check(f"rank {victim}" in text, f"rank {rank} was not told that the error was on rank {victim}: {text}")
        check(_CAUSES[what] in text, f"rank {rank} was not told the cause: {text}")
        near = _stands_by(_CAUSES[what], victim, text, rank)
        check(near, f"rank {rank} was told of another rank than rank {victim} beside the cause: {text}")


def _stands_by(cause: str, victim: int, text: str, rank: int) -> bool:
    """Whether each mention of the cause comes next after this rank's number, or each next before it."""

    def named(part: str) -> list[str]:
        return [number for number in re.findall(r"rank (\d+)", part) if number == str(victim) or number != str(rank)]

    parts = text.split(cause)
    heads = [cause.join(parts[:number]) for number in range(1, len(parts))]
    tails = [cause.join(parts[number:]) for number in range(1, len(parts))]
    wanted = [str(victim)]
    return all(named(head)[-1:] == wanted for head in heads) or all(named(tail)[:1] == wanted for tail in tails)


def _sabotaged(place: Arena, parameters: Sequence[Parameter], what: str, victim: int) -> Callable[[], None]:
    fails = place.rank == victim

    def act() -> None:
        if what == "construction":
            place.build(SGD, parameters, lr=_REFUSED if fails else 0.1)
            return
        keywords = {"only": victim} if what in ("step", "after-step") else {}
        with subject_acts():
            ours = place.build(_CLASSES.get(what, SGD), parameters, lr=0.1, **keywords)
        last = 2 if what == "second-step" else 1
        for number in range(1, last + 1):
            place.give_gradients(parameters, number)
            if what in ("gradient", "second-step") and fails and number == last:
                for tensor, _ in parameters[0].pieces:
                    assert tensor.grad is not None
                    tensor.grad = tensor.grad.to_sparse()
            ours.step(*((_closure(_OF_CLOSURES[what] if fails else None),) if what in _OF_CLOSURES else ()))

    return act


def _closure(error: Callable[[str], Exception] | None) -> Callable[[], torch.Tensor]:
    def evaluate() -> torch.Tensor:
        if error is not None:
            raise error(failing.MESSAGE)
        return torch.ones(())

    return evaluate


def _heard(act: Callable[[], None]) -> str:
    """What this rank was told, or nothing."""
    try:
        act()
    except Deviation:
        raise
    except Exception as error:
        try:
            return f"{type(error).__name__}: {error}"
        except Exception:  # the error itself, which cannot be printed
            return type(error).__name__
    return ""
