"""What fixtures, agents, test cases and suites may see of the rank that their process is."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import pytest
from everyrank.errors import MisuseError
from everyrank.model import notes as model_notes
from everyrank.rank.world import World
from everyrank.wire.messages import Leak

#: The note by which a rank reports why no test like this one can work.
BROKEN = "broken"


class RankContext(Protocol):
    """A rank during one test."""

    world: World
    item: pytest.Item
    notes: dict[str, Any]
    """What the test notes about itself, for reports."""
    leaks: list[Leak]
    """Leaks that a fixture has found itself."""

    @property
    def run_folder(self) -> str:
        """The folder of the run, which ranks of all its tests share; it is removed at its end."""

    @property
    def calling(self) -> bool:
        """Whether the test's call phase runs now."""

    @property
    def variables_before(self) -> Mapping[str, str | None]:
        """The values that torchrun's variables had after the collection, before this process became a rank."""

    def failed(self) -> bool:
        """Return whether this rank's test has failed or was skipped so far."""

    def gather(self, point: str, text: str) -> list[str] | None:
        """Wait for all ranks at this point and return their texts; None if one of them will never reach it."""

    def announce_skip(self, reason: str) -> None:
        """Report that this rank skips the test before it waits for the others: they may wait for it."""

    def announce_destruction(self) -> None:
        """Report that this rank has done its work and destroys its group: other work may use the cores meanwhile."""

    def allowing(self) -> AbstractContextManager[None]:
        """Allow the process to keep what is made inside: it is no leak."""

    def use_up(self, reason: str) -> None:
        """Note why this process cannot serve another test."""

    def keep_if_xfailed(self) -> None:
        """State that an xfail of this test is no reason to end its world: the test ended where it was to end."""

    def may_be_kept(self) -> bool:
        """Return whether this rank's test, as far as it has come, is no reason to end its world."""

    def default_group(self) -> AbstractContextManager[Any]:
        """Provide the default process group for this test; it stays open if the world is kept."""

    def keep_group(self, group: Any) -> None:
        """Keep a default group that was opened without ``default_group`` for later tests."""


RANK: pytest.StashKey[RankContext] = pytest.StashKey()

_current: list[RankContext] = []  # a process is one rank; empty in the controller


def current_rank() -> RankContext:
    """Return the rank that this process is."""
    if not _current:
        raise MisuseError("this process is not a rank of a world")
    return _current[-1]


def notes() -> dict[str, Any]:
    """Return the dict of what this rank's test notes about itself, for reports; not read outside of a world."""
    return _current[-1].notes if _current else {}


def become(rank: RankContext, config: pytest.Config) -> None:
    """Make this process that rank."""
    _current[:] = [rank]
    model_notes.keep(notes)
    config.stash[RANK] = rank
