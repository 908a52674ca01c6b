"""Carry out one draw on all ranks: do each action on subject and reference, and compare them after each."""

from __future__ import annotations

import contextlib
import traceback
import warnings
from typing import Any

from everyrank import World, current_world
from everyrank.suites.engine.contract import contract
from everyrank.suites.engine.subject import Subject
from everyrank.suites.errors import BrokenAdapter, Deviation
from everyrank.suites.generate.grammar import Drawn, Grammar, Rejected


class RanksDiverged(BrokenAdapter):
    """The ranks are at different points of a draw, so nothing more can be done in this world."""


def replay(subject: Subject, draw: Drawn) -> None:
    """Carry out the draw in a test of ``draw.size`` ranks, and raise Deviation if the subject differs."""
    __tracebackhide__ = True
    world = current_world()
    found: Grammar = contract(subject.contract).part("grammar")
    if draw.size != world.size:
        raise BrokenAdapter(f"the draw is for {draw.size} ranks, and this world has {world.size}")
    problem = perform(found, subject, draw, world)
    if problem:
        raise Deviation(problem)


def perform(found: Grammar, subject: Subject, draw: Drawn, world: World, name: str = "the draw") -> str | None:
    """Carry out one draw, with the other ranks of ``world``.

    Return, on all ranks alike, a text that says what differs, an empty text, or None if the draw was rejected.
    """
    if found.play is not None:
        return found.play(subject, draw)
    assert found.carry_out is not None
    with contextlib.closing(found.carry_out(subject, draw)) as actions:  # type: ignore[type-var]
        for number in range(len(draw.actions) + 1):  # the first step makes the objects
            texts = meet(world, f"{name}, action {number}", _attempt(actions))
            if any(text == _REJECTED for text in texts):
                return None
            for rank, text in enumerate(texts):
                if text:
                    return f"{_label(draw, number)}: on rank {rank}: {text}"
    return ""


_REJECTED = "(the reference refuses)"


def _attempt(actions: Any) -> str:
    """Do one action on this rank; return a text that says what differs, or an empty one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a draw is about values; the laws are about warnings too
        try:
            next(actions, None)
        except Rejected:
            return _REJECTED
        except Deviation as deviation:
            return str(deviation)
        except Exception as error:
            return f"the kit itself raised:\n{''.join(traceback.format_exception(error))}"
    return ""


def meet(world: World, point: str, text: str) -> list[str]:
    """Wait until all ranks are at this point, and return their texts."""
    met = world._meet(point, "", text)
    if met.missing or set(met.points) != {point}:
        points = "; ".join(f"rank {rank}: {reached or 'ended'}" for rank, reached in enumerate(met.points))
        raise RanksDiverged(f"the ranks are at different points: {points}")
    return met.texts


def _label(draw: Drawn, number: int) -> str:
    return f"action {number}, {draw.actions[number - 1]}" if number else "when the objects are made"
