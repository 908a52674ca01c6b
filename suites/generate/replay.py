"""Carry out one draw on all ranks: do each action on subject and reference, and compare them after each."""

from __future__ import annotations

from everyrank import World, current_world
from everyrank.suites.engine.contract import contract
from everyrank.suites.engine.subject import Subject
from everyrank.suites.errors import BrokenAdapter, Deviation, RanksDiverged
from everyrank.suites.generate.grammar import Drawn, Grammar


def replay(subject: Subject, draw: Drawn) -> None:
    """Carry out the draw in a test of ``draw.size`` ranks, and raise Deviation if the subject differs."""
    __tracebackhide__ = True
    world = current_world()
    found: Grammar = contract(subject.contract).part("grammar")
    if draw.size != world.size:
        raise BrokenAdapter(f"the draw is for {draw.size} ranks, and this world has {world.size}")
    problem = found.play(subject, draw)
    if problem:
        raise Deviation(problem)


def meet(world: World, point: str, text: str) -> list[str]:
    """Wait until all ranks are at this point, and return their texts."""
    met = world._meet(point, "", text)
    if met.missing or set(met.points) != {point}:
        points = "; ".join(f"rank {rank}: {reached or 'ended'}" for rank, reached in enumerate(met.points))
        raise RanksDiverged(f"the ranks went different ways: {points}")
    return met.texts
