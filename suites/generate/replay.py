"""Carry out one draw on all ranks: each action on the subject and on the reference, compared after each."""

from __future__ import annotations

import contextlib
import traceback
import warnings
from typing import Any

from everyrank import World, current_world
from everyrank.suites.errors import BrokenAdapter, Deviation
from everyrank.suites.generate.grammar import Drawn, Grammar, Rejected, grammar
from everyrank.suites.subject import Subject


class Parted(BrokenAdapter):
    """The ranks came to different places, so that nothing further can be done in this world."""


def replay(subject: Subject, draw: Drawn) -> None:
    """In a test of ``draw.size`` ranks: carry out the draw, and raise Deviation where the subject differs."""
    __tracebackhide__ = True
    world = current_world()
    found = grammar(subject.contract)
    if found is None:
        raise BrokenAdapter(f"{subject.contract} has no grammar, so there are no draws for {subject.name}")
    if draw.size != world.size:
        raise BrokenAdapter(f"the draw is for {draw.size} ranks, and this world has {world.size}")
    if found.driven and world.rank:
        return
    problem = perform(found, subject, draw, None if found.driven else world)
    if problem:
        raise Deviation(problem)


def perform(found: Grammar, subject: Subject, draw: Drawn, world: World | None, name: str = "the draw") -> str | None:
    """Carry out one draw, with the other ranks of ``world`` or alone.

    Returns, on all ranks alike, what differs; nothing at all; or None if it was rejected.
    """
    with contextlib.closing(found.carry_out(subject, draw)) as actions:  # type: ignore[type-var]
        for number in range(len(draw.actions) + 1):  # before the first action the objects are made
            texts = meet(world, f"{name}, action {number}", _attempt(actions))
            if any(text == _REJECTED for text in texts):
                return None
            for rank, text in enumerate(texts):
                if text:
                    return f"{_label(draw, number)}: on rank {rank}: {text}"
    return ""


_REJECTED = "(the reference refuses)"


def _attempt(actions: Any) -> str:
    """One action on this rank: what differs, in words."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a draw is about values; of warnings the laws speak
        try:
            next(actions, None)
        except Rejected:
            return _REJECTED
        except Deviation as deviation:
            return str(deviation)
        except Exception as error:
            return f"the kit itself raised:\n{''.join(traceback.format_exception(error))}"
    return ""


def meet(world: World | None, point: str, text: str) -> list[str]:
    """Every rank's text, once all ranks are at this point; without a world, this rank's."""
    if world is None:
        return [text]
    met = world._meet(point, "", text)
    if met.missing or set(met.points) != {point}:
        where = "; ".join(f"rank {rank}: {one or 'ended'}" for rank, one in enumerate(met.points))
        raise Parted(f"the ranks went different ways: {where}")
    return met.texts


def _label(draw: Drawn, number: int) -> str:
    return f"action {number}, {draw.actions[number - 1]}" if number else "when the objects are made"
