"""A contract: the laws for one kind of subject. A law is a function whose docstring is the law."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import KW_ONLY, dataclass, field
from functools import cache, cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from everyrank.fixtures.optimizers import Row, adding, rows
from everyrank.fixtures.rogues import Rogue
from everyrank.suites.errors import DeclarationError, kind_of


@dataclass(frozen=True)
class Point:
    """One point at which a law is checked. A contract has a subclass for each set of values that its laws need.

    ``core`` points are few: just enough for each law to kill the rogues that break it.
    """

    label: str
    size: int
    _: KW_ONLY
    core: bool = False
    not_applicable: str = ""
    optimizer: str = ""
    fixtures: tuple[str, ...] | None = None
    """Rank fixtures of this point, if they are not the law's."""
    turns: int = 1
    """How many subjects have the point once between them in the default profile; 0: it is in the full one alone."""
    simulated: int | None = None
    """The world size that the law simulates in its ranks: a subject that names its sizes must have named this."""
    plainest: bool = False
    """Whether this is the plainest use, SGD without arguments. It is tried first, if the subject claims it."""

    @property
    def claimed_size(self) -> int:
        """The world size that a subject must claim."""
        return self.size if self.simulated is None else self.simulated

    @cached_property
    def fields(self) -> dict[str, str]:
        """The values of this point that its law reads, as texts: the default profile has each of them."""
        return {"optimizer": self.optimizer, "size": str(self.size), **fields_of(self, _NOT_READ)}


#: Fields of every point that say how it is listed and run, and not what its law is asked.
_NOT_READ = frozenset(field.name for field in dataclasses.fields(Point))


def fields_of(value: Any, without: Collection[str] = ()) -> dict[str, str]:
    """Return the fields of a dataclass as texts; in place of a plan, which has no name, those of the plan."""
    texts: dict[str, str] = {}
    for each in dataclasses.fields(value):
        if each.name not in without:
            inner = getattr(value, each.name)
            nested = dataclasses.is_dataclass(inner) and not hasattr(inner, "name")
            texts |= fields_of(inner) if nested else {each.name: _text(inner)}
    return texts


def _text(value: Any) -> str:
    """Return a text that is the same in every process, which the repr of a function is not."""
    if isinstance(value, Mapping):
        return str({name: _text(inner) for name, inner in value.items()})
    if isinstance(value, (list, tuple)):
        return str([_text(inner) for inner in value])
    if dataclasses.is_dataclass(value) and not hasattr(value, "name"):
        return str(fields_of(value))
    return str(getattr(value, "name", None) or getattr(value, "__qualname__", None) or value)


#: The points of one law.
P = TypeVar("P", bound=Point)


@dataclass(frozen=True)
class Law:
    """One rule with a stable id."""

    id: str
    check: Callable[[Any, Any], None]
    """The second argument is one of the law's points: ``Contract.law`` lets mypy check that they fit."""
    points: Callable[[], Iterable[Point]]
    fixtures: tuple[str, ...] | None = None
    """Rank fixtures of its cases, if they are not the contract's."""
    fresh: bool = False
    """Whether its cases need new processes."""
    groups: tuple[str, ...] = ()
    """The groups of its contract that it belongs to."""
    timeout: float | None = None
    """The time limit of its cases in seconds, if it is not the usual one."""
    crosses: bool = False
    """Whether it asks what all laws ask at once, by scripts: it is checked on the subject itself, on all ranks."""
    fit: Callable[[Sequence[Any]], Callable[[Any], Any]] | None = None
    """Given all cases of a subject, returns what fits a point to what the subject declares."""
    explain: Callable[[Any, Any], str] | None = None
    """Given a subject and a point at which it fails, returns more about it; on all ranks, in that case's arena."""

    @property
    def text(self) -> str:
        return (self.check.__doc__ or "").strip()


#: Opens the arena of a case on every rank, given a Subject and a point: it sets up agents or groups and gives a law
#: access to the subject. It may ask for a subclass of Point if all laws of its contract have such points.
Arena = Callable[[Any, Any], AbstractContextManager[Any]]


@dataclass(eq=False)
class Contract:
    """The laws for one kind of subject.

    Parts that few runs need may be texts, ``package.module:NAME``, which are imported when they are needed.
    """

    name: str
    arena: Arena
    fixtures: tuple[str, ...] = ()
    """Rank fixtures that every case of this contract needs."""
    marks: tuple[Any, ...] = ()
    """Marks of every case, such as options of those fixtures."""
    choices: tuple[str, ...] = ()
    """Choices that the contract leaves to a subject, by the names that ``Subject.declares`` accepts."""
    capabilities: Sequence[Any] | str = ()
    """The Capabilities that a subject may lack, by names that ``Subject.lacks`` accepts."""
    ledgers: Mapping[str, str] = field(default_factory=dict)
    """Packages whose ledgers any subject may build on, by the word before the colon in ``Subject.known``."""
    law_modules: tuple[str, ...] = ()
    """The modules that register laws, besides the one that makes the contract."""
    groups: Mapping[str, str] = field(default_factory=dict)
    """Groups of laws, such as TRAINED, and what their laws have in common. A rogue may name a group."""
    plainest: Callable[[Any], None] | str | None = None
    """The plainest use, tried before the first law at each world size; it compares nothing."""
    exemplar: Any = None
    """The Subject that must pass every law, in the kill matrix."""
    nothing: Any = None
    """The Subject that does nothing, and so must fail every law there."""
    rogues: Sequence[Rogue] | str | None = None
    """Exemplars with one sabotage each, and the laws that they break."""
    player: Any = None
    """The Player, whose methods are the contract's moves, if it has scripts, which can be drawn."""
    _laws: dict[str, Law] = field(default_factory=dict, init=False, repr=False)
    _points: tuple[tuple[Any, ...], list[tuple[Law, Point]]] = field(default=((), []), init=False, repr=False)
    """All points, and what they were made from, the rows of the optimizer table and the laws: subjects share them."""

    @property
    def laws(self) -> Mapping[str, Law]:
        """The laws, by id: in the order of their modules, whichever of them was imported first."""
        for module in self.law_modules:
            importlib.import_module(module)
        order = {module: number for number, module in enumerate(self.law_modules)}
        return dict(sorted(self._laws.items(), key=lambda item: order.get(item[1].check.__module__, -1)))

    def law(
        self,
        id: str,
        points: Callable[[], Iterable[P]],
        fixtures: tuple[str, ...] | None = None,
        fresh: bool = False,
        groups: tuple[str, ...] = (),
    ) -> Callable[[Callable[[Any, P], None]], Callable[[Any, P], None]]:
        """Register the decorated function as a law. It takes the points that ``points`` yields: mypy checks it."""

        def register(check: Callable[[Any, P], None]) -> Callable[[Any, P], None]:
            if id in self._laws:
                raise DeclarationError(f"{self.name}: the law {id} is registered twice")
            if not check.__doc__:
                raise DeclarationError(f"{self.name}: the law {id} has no docstring, which would be the law")
            if strange := [group for group in groups if group not in self.groups]:
                raise DeclarationError(f"{self.name}: the law {id}: Contract(groups=...) has no {strange[0]}")
            self.register(Law(id, check, points, fixtures, fresh, groups))
            return check

        return register

    def register(self, law: Law) -> None:
        """Add a law."""
        self._laws[law.id] = law

    def part(self, name: str) -> Any:
        """Return a part of the contract, imported if it was given as a text."""
        part = getattr(self, name)
        if part is None:
            raise DeclarationError(f"the contract {self.name} has no {name}: pass {name}=... to its Contract(...)")
        if not isinstance(part, str):
            return part
        try:
            return pkgutil.resolve_name(part)
        except (ValueError, ImportError, AttributeError) as error:
            text = f"the contract {self.name}: {name}={part!r} does not load"
            raise DeclarationError(f"{text}: {type(error).__name__}: {error}") from error

    def expand(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the ids of laws, given ids and groups. A name that is neither stays as it is."""
        laws = self.laws.values()
        known = [[law.id for law in laws if name in (law.id, *law.groups)] or [name] for name in names]
        return tuple(dict.fromkeys(law for found in known for law in found))

    def points(
        self, sizes: tuple[int, ...] | None = None, optimizers: Sequence[Row] = ()
    ) -> Iterator[tuple[Law, Point]]:
        """Yield every law at every point whose world size is one of these; None stands for all sizes.

        If there are optimizers of a subject's own, the points are those of these optimizers.
        """
        with adding(optimizers):
            made_from = (*rows(), *self.laws.values())
            if self._points[0] != made_from:
                self._points = made_from, [(law, point) for law in self.laws.values() for point in law.points()]
        own = {row.name for row in optimizers}
        for law, point in self._points[1]:
            if (sizes is None or point.claimed_size in sizes) and (not own or point.optimizer in own):
                yield law, point


#: The group of entry points by which a distribution offers its contracts: ``name = "package.module:CONTRACT"``.
GROUP = "everyrank.contracts"


@cache
def _offers() -> Mapping[str, Sequence[EntryPoint]]:
    """The entry points of all installed distributions, by the contract's name."""
    offers: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        offers.setdefault(entry.name, []).append(entry)
    return offers


def contracts() -> list[str]:
    """Return the names of all contracts that installed distributions offer."""
    return sorted(_offers())


def contract(named: str | Contract) -> Contract:
    """Return the contract of this name. A contract that is given itself need not be installed."""
    if isinstance(named, Contract):
        return named
    offers = _offers().get(named, ()) if isinstance(named, str) else ()
    if not offers:
        known = ", ".join(contracts()) or f"none: no installed distribution has entry points of {GROUP}"
        raise DeclarationError(f"unknown contract {named!r}: there are {known}")
    if len(offers) > 1:
        owners = " and ".join(sorted(map(_distribution, offers)))
        raise DeclarationError(f"the contract {named!r} is offered by {owners}: uninstall all but one")
    return _load(offers[0])


def _load(offer: EntryPoint) -> Contract:
    """Import a contract. The error names the distribution, since its user may not know that it is installed."""
    source = f"the contract {offer.name!r} of {_distribution(offer)}, {offer.value}"
    try:
        offered = offer.load()
    except Exception as error:
        raise DeclarationError(f"{source}, does not load: {type(error).__name__}: {error}") from error
    if not isinstance(offered, Contract):
        raise DeclarationError(f"{source}, is not a Contract but {kind_of(offered)}")
    if offered.name != offer.name:
        raise DeclarationError(f"{source}, has another name: Contract({offered.name!r}, ...)")
    return offered


def _distribution(offer: EntryPoint) -> str:
    return f"{offer.dist.name} {offer.dist.version}" if offer.dist is not None else "an unknown distribution"
