"""The base of arenas whose ranks all do the same: a case has one outcome, on whatever rank it went wrong."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from everyrank import World, current_world
from everyrank.suites.engine.contract import Point
from everyrank.suites.engine.subject import Subject
from everyrank.suites.errors import Deviation

_END = "the end of the case"

AnyArena = TypeVar("AnyArena", bound="BaseArena")


@dataclass
class BaseArena:
    """The subject and the point of one case, on one rank of its world."""

    subject: Subject
    point: Point
    world: World
    deviations: list[str] = field(default_factory=list, init=False)
    _meetings: int = field(default=0, init=False)

    @classmethod
    @contextlib.contextmanager
    def opened(cls: type[AnyArena], subject: Subject, point: Point) -> Iterator[AnyArena]:
        """Give this rank its arena. All ranks do the same, over the default group.

        A deviation on one rank is raised on all: a case has one outcome, and any rank may be asked for it.
        """
        arena = cls(subject, point, current_world())
        with arena.agreeing():
            yield arena

    @property
    def rank(self) -> int:
        return self.world.rank

    @property
    def size(self) -> int:
        return self.world.size

    def check(self, holds: bool, text: str) -> None:
        """Note a deviation if a condition fails. It is raised at the end: others may need this rank until then."""
        if not holds:
            self.deviations.append(text)

    def meet(self, event: str, text: str = "") -> list[str]:
        """Wait until all ranks are here, and return their texts. Ranks at different points break a law."""
        self._meetings += 1
        return self._reach(f"{event} ({self._meetings})", text)

    def _reach(self, point: str, text: str = "") -> list[str]:
        met = self.world._meet(point, "", text)
        if met.missing or set(met.points) != {point}:
            points = [f"rank {rank}: {reached}" for rank, reached in enumerate(met.points)]
            points += [f"rank {rank}: ended" for rank in met.missing]
            raise self._left() or Deviation(f"the ranks went different ways: {'; '.join(points)}")
        return met.texts

    def _leave(self, error: Exception) -> None:
        """Leave the reason why this rank ends, for the others: nothing of an error that is no deviation."""
        unfinished = self._file(f"unfinished-{self.rank}")
        unfinished.write_text(error.packed() if isinstance(error, Deviation) else "")
        # Another rank reads the whole text, or does not see the file.
        unfinished.rename(self._file(str(self.rank)))

    def _left(self) -> Deviation | None:
        """Return the deviation of another rank, if one has ended with it."""
        for rank in range(self.size):
            with contextlib.suppress(FileNotFoundError):
                if packed := self._file(str(rank)).read_text():
                    return Deviation.unpacked(packed, f"on rank {rank}: ")
        return None

    def _file(self, name: str) -> Path:
        return Path(self.world.host_folder, f"end-of-rank-{name}")

    @contextlib.contextmanager
    def agreeing(self) -> Iterator[None]:
        """Let all ranks end alike: a deviation on one rank is raised on all of them.

        A rank that deviates ends at once: others may wait for it in a collective, and the harness then ends them.
        """
        try:
            yield
            if self.deviations:
                raise Deviation(self.deviations[0])
        except Exception as error:
            self._leave(error)
            raise
        try:
            self._reach(_END)
        except Deviation:
            # An error that is no deviation speaks for itself, on its own rank.
            if self._left() is not None or not any(self._file(str(rank)).exists() for rank in range(self.size)):
                raise
