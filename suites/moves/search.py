"""Search for a script that fails for a subject: Hypothesis draws on rank 0, and all ranks play each script."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import Any

from everyrank import World
from everyrank.rank.examples import drawn_by_seed_alone
from everyrank.suites.engine.contract import contract
from everyrank.suites.engine.subject import Subject
from everyrank.suites.moves.data import encode
from everyrank.suites.moves.player import Player, play
from everyrank.suites.moves.script import Script
from everyrank.suites.moves.shorten import shortest
from everyrank.suites.moves.together import meet
from everyrank.suites.options import SearchPlan

#: How long a failing draw is made shorter, in seconds: each attempt takes long if it fails by waiting in vain.
SHRINKING = 60.0

#: How many shorter draws are tried at the most, once Hypothesis is done.
_ATTEMPTS = 50

#: The text that rank 0 sends instead of a draw at the end of the search.
_END = "end"


@dataclass
class Found:
    """The result of a search, the same on all ranks."""

    draws: int = 0
    """How many draws were carried out up to the first that failed, without those for shrinking."""
    rejected: int = 0
    actions: int = 0
    """How many actions all draws had, with those for shrinking."""
    seconds: float = 0.0
    draw: Any = None
    """The shortest draw that fails, or None."""
    problem: str = ""
    _since: float = field(default_factory=time.monotonic)


class _DrawFails(Exception):
    """Raised for Hypothesis if a draw fails. Hypothesis distinguishes failures by their type and line."""


class Search:
    """One search on one rank. All ranks call `run` with the same arguments."""

    def __init__(self, subject: Subject, features: frozenset[str], world: World) -> None:
        self.subject, self.features, self.world = subject, features, world
        self.player: type[Player] = contract(subject.contract).part("player")
        self.number = 0
        self.result = Found()
        self._failing: set[str] = set()
        self._passed: set[str] = set()
        self._shrinks_until = float("inf")
        self._longest = 0.0
        """How long a draw has taken at the most."""

    @property
    def encoded(self) -> str:
        """The failing draw as JSON."""
        return encode(self.result.draw)

    def run(self, plan: SearchPlan) -> Found:
        if plan.draw:
            self._carry_out(self.player.read(plan.draw))
        elif self.world.rank == 0:
            self._lead(plan)
        else:
            self._follow()
        if plan.shrink and not plan.draw and self.result.draw is not None:
            self._shorten()
        self.result.seconds = time.monotonic() - self.result._since
        return self.result

    def _lead(self, plan: SearchPlan) -> None:
        """Draw and send each draw to all ranks, until one fails or the planned number is reached."""
        from everyrank.suites.moves.drawing import scripts_of
        from hypothesis import HealthCheck, Phase, given, reject, seed, settings

        def attempt(draw: Script) -> None:
            text = encode(draw)
            if time.monotonic() > self._shrinks_until and text not in self._failing:
                if text in self._passed:
                    return  # Hypothesis refuses a draw that ends otherwise than before
                reject()
            self._share(text)
            problem = self._carry_out(draw)
            if problem is None:
                reject()
            if problem:
                raise _DrawFails
            self._passed.add(text)

        # These are calls, not decorators: mypy does not know the types of decorators if Hypothesis is not installed.
        search = settings(
            max_examples=plan.draws,
            phases=[Phase.generate, Phase.shrink] if plan.shrink else [Phase.generate],
            database=None,  # seeds are fixed, and no file is written
            deadline=None,
            suppress_health_check=list(HealthCheck),
            report_multiple_bugs=False,
        )(given(scripts_of(self.player)(self.world.size, self.features))(attempt))
        with contextlib.suppress(_DrawFails), drawn_by_seed_alone():
            seed(plan.seed)(search)()
        self._share(_END)

    def _follow(self) -> None:
        """Carry out the draws that rank 0 sends."""
        while (text := self._share("")) != _END:
            self._carry_out(self.player.read(text))

    def _shorten(self) -> None:
        """Make the failing draw shorter, as a script, in what is left of the time for that."""
        left = self._shrinks_until - time.monotonic()
        most = min(_ATTEMPTS, int(max(left, 0.0) / max(self._longest, 0.01)))
        attempts = int(self._share(str(most)))  # each rank has a clock of its own
        result = self.result
        found = shortest(self.subject, result.draw, self.features, attempts)
        if found.script != result.draw:
            result.draw, result.problem = found.script, found.problem

    def _share(self, text: str) -> str:
        """Return rank 0's text on every rank."""
        self.number += 1
        return meet(self.world, f"draw {self.number}", text)[0]

    def play(self, draw: Script) -> str | None:
        return play(self.subject, draw)

    def _carry_out(self, draw: Script) -> str | None:
        began = time.monotonic()
        problem = self.play(draw)
        self._longest = max(self._longest, time.monotonic() - began)
        result = self.result
        result.actions += len(draw.moves)
        if problem is None:
            result.rejected += 1
        if not result.draw:
            result.draws += problem is not None
        if problem:
            if not result.draw:
                self._shrinks_until = time.monotonic() + SHRINKING
            self._failing.add(encode(draw))
            # Hypothesis makes no draw larger once one has failed, and ends with the smallest.
            result.draw, result.problem = draw, problem
        return problem
