"""Search for a draw that a subject gets wrong: Hypothesis draws on rank 0, and all ranks carry out what it drew."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import Any

from everyrank import World
from everyrank.suites.generate.data import decode, encode
from everyrank.suites.generate.grammar import Drawn, Grammar
from everyrank.suites.generate.options import Plan
from everyrank.suites.generate.replay import meet, perform
from everyrank.suites.subject import Subject

#: What rank 0 hands out instead of a draw when it has seen enough.
_END = "end"


@dataclass
class Found:
    """What a search came to, the same on all ranks."""

    draws: int = 0
    """How many draws were carried out before the first that failed, and that one; those for shrinking not counted."""
    rejected: int = 0
    actions: int = 0
    """Of all draws, also those that were made for shrinking."""
    seconds: float = 0.0
    draw: Any = None
    """The shortest draw that fails, or None."""
    problem: str = ""
    _since: float = field(default_factory=time.monotonic)


class _Failing(Exception):
    """A draw fails: for Hypothesis, which tells failures apart by their type and line."""


class Search:
    """One search, on one rank. All ranks make one with the same arguments and call `run`; or rank 0, if it drives."""

    def __init__(self, found: Grammar, subject: Subject, features: frozenset[str], world: World) -> None:
        self.grammar, self.subject, self.features, self.size = found, subject, features, world.size
        self.world = None if found.driven else world
        self.number = 0
        self.result = Found()

    @property
    def encoded(self) -> str:
        """The failing draw as JSON."""
        return encode(self.result.draw)

    def run(self, plan: Plan) -> Found:
        if plan.draw:
            self._carry_out(decode(plan.draw, self.grammar.by_name))
        elif self.world is None or self.world.rank == 0:
            self._lead(plan)
        else:
            self._follow()
        self.result.seconds = time.monotonic() - self.result._since
        return self.result

    def _lead(self, plan: Plan) -> None:
        """Draw, and hand each draw to all ranks, until one fails or there were enough of them."""
        from hypothesis import HealthCheck, Phase, given, reject, seed, settings

        def attempt(draw: Drawn) -> None:
            self._hand_out(encode(draw))
            problem = self._carry_out(draw)
            if problem is None:
                reject()
            if problem:
                raise _Failing

        # Called and not written as decorators, whose types are not known where Hypothesis is not installed.
        search = settings(
            max_examples=plan.draws,
            phases=[Phase.generate, Phase.shrink] if plan.shrink else [Phase.generate],
            database=None,  # fixed seeds, and nothing written
            deadline=None,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        )(given(self.grammar.strategy(self.size, self.features))(attempt))
        with contextlib.suppress(_Failing):
            seed(plan.seed)(search)()
        self._hand_out(_END)

    def _follow(self) -> None:
        """Carry out what rank 0 draws."""
        while (text := self._hand_out("")) != _END:
            self._carry_out(decode(text, self.grammar.by_name))

    def _hand_out(self, text: str) -> str:
        """Rank 0's text, on every rank."""
        self.number += 1
        return meet(self.world, f"draw {self.number}", text)[0]

    def _carry_out(self, draw: Drawn) -> str | None:
        problem = perform(self.grammar, self.subject, draw, self.world, f"draw {self.number}")
        result = self.result
        result.actions += len(draw.actions)
        if problem is None:
            result.rejected += 1
        if not result.draw:
            result.draws += problem is not None
        if problem:
            # Hypothesis makes no draw larger once one has failed, and ends with the smallest.
            result.draw, result.problem = draw, problem
        return problem
