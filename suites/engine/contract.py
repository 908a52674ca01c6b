"""A contract: the laws for one kind of subject. A law is a function whose docstring is the law."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from everyrank.suites.engine.subject import Subject
from everyrank.suites.errors import DeclarationError


@dataclass(frozen=True)
class Point:
    """One point at which a law is checked: a variant, a world size, and the values that the law needs.

    ``core`` points are few: just enough for each law to kill the rogues that break it.
    """

    label: str
    size: int
    values: Mapping[str, Any] = field(default_factory=dict)
    core: bool = False
    not_applicable: str = ""
    optimizer: str = ""
    fixtures: tuple[str, ...] | None = None
    """Rank fixtures of this point, if they are not the law's."""


@dataclass(frozen=True)
class Law:
    """One rule with a stable id."""

    id: str
    check: Callable[[Any, Point], None]
    points: Callable[[], Iterable[Point]]
    fixtures: tuple[str, ...] | None = None
    """Rank fixtures of its cases, if they are not the contract's."""
    fresh: bool = False
    """Whether its cases need new processes."""

    @property
    def text(self) -> str:
        return (self.check.__doc__ or "").strip()


#: Opens the arena of a case on every rank: it sets up agents or groups and gives a law access to the subject.
Arena = Callable[[Subject, Point], AbstractContextManager[Any]]


@dataclass
class Contract:
    """The laws for one kind of subject."""

    name: str
    arena: Arena
    fixtures: tuple[str, ...] = ()
    """Rank fixtures that every case of this contract needs."""
    marks: tuple[Any, ...] = ()
    """Marks of every case, such as options of those fixtures."""
    choices: tuple[str, ...] = ()
    """Choices that the contract leaves to a subject, by the names that ``Subject.declares`` accepts."""
    laws: dict[str, Law] = field(default_factory=dict)
    plainest: Callable[[Any], None] | None = None
    """The preflight: the plainest use, tried before the first law in each process; it compares nothing."""

    def law(
        self,
        id: str,
        points: Callable[[], Iterable[Point]],
        fixtures: tuple[str, ...] | None = None,
        fresh: bool = False,
    ) -> Callable[[Any], Any]:
        """Register the decorated function as a law."""

        def register(check: Callable[[Any, Point], None]) -> Callable[[Any, Point], None]:
            if id in self.laws:
                raise DeclarationError(f"{self.name}: the law {id} is registered twice")
            if not check.__doc__:
                raise DeclarationError(f"{self.name}: the law {id} has no docstring, which would be the law")
            self.laws[id] = Law(id, check, points, fixtures, fresh)
            return check

        return register

    def points(self, sizes: tuple[int, ...] | None = None) -> Iterator[tuple[Law, Point]]:
        """Yield every law at every point whose world size is one of these; None stands for all sizes."""
        for law in self.laws.values():
            for point in law.points():
                if sizes is None or point.size in sizes:
                    yield law, point


#: The module of each contract, by the contract's name. It is imported when a subject names the contract.
_CONTRACTS = {
    "replicate": "everyrank.suites.replicate.contract",
    "rpc-optimizer": "everyrank.suites.rpc_optimizer.contract",
    "sharded-optimizer": "everyrank.suites.sharded_optimizer.contract",
    "parameter-server": "everyrank.suites.parameter_server.contract",
}


def contract(name: str) -> Contract:
    """Return the contract of this name."""
    if name not in _CONTRACTS:
        raise DeclarationError(f"unknown contract {name!r}: there are {', '.join(sorted(_CONTRACTS))}")
    found: Contract = importlib.import_module(_CONTRACTS[name]).CONTRACT
    return found


def home(name: str) -> str:
    """Return the name of a contract's folder; its subjects and its rogues are found by that name too."""
    contract(name)  # raises an error that lists the contracts if there is none of this name
    return _CONTRACTS[name].split(".")[-2]


def contracts() -> list[str]:
    return sorted(_CONTRACTS)
