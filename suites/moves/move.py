"""A move: one decorated method of a player, with all that is known of it."""

from __future__ import annotations

import functools
import inspect
import itertools
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeVar

from everyrank.suites.moves.script import Call

#: All layers of crossings.
ALL = 99

#: What a call needs that makes no sense at its point of a script: no subject has it.
NEVER = "never"

P = ParamSpec("P")
AnyPlayer = TypeVar("AnyPlayer")

#: The values from which an argument is drawn, one that is listed twice twice as often; or a function of the outline.
Values = Sequence[Any] | Callable[[Any], Sequence[Any]]


#: A feature, NEVER, or what yields such, given the outline and those of the arguments that it names.
Needs = str | Callable[..., Iterable[str]]


def only_if(holds: object) -> Sequence[str]:
    """Return what a call needs that makes sense only if this holds."""
    return () if holds else (NEVER,)


def _as_it_was(outline: Any, **arguments: Any) -> None:
    pass


@dataclass(frozen=True)
class Move:
    """All that is known of a move besides what it does. An outline is what a script has done so far."""

    name: str
    law: str
    """The law that it belongs to."""
    laws: Mapping[str, str] = field(default_factory=dict)
    """The laws of its arguments: the first that is given counts."""
    needs: Needs = lambda outline: ()
    """The features that a call needs; NEVER if the call makes no sense there."""
    needs_of: Mapping[str, Needs] = field(default_factory=dict)
    """The same for each argument, if it is not its default."""
    then: Callable[..., None] = _as_it_was
    """Changes the outline as the call changes the objects."""
    drawn: Mapping[str, Values] = field(default_factory=dict)
    """The values that are drawn for each argument."""
    kinds: Sequence[Mapping[str, Any]] = ({},)
    """The arguments with which it is crossed. A value may be a function of the outline; None if there is none now."""
    further: Mapping[int, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    """Those of the further crossings, by their layer; their numbers follow. A move of a layer has no other kinds."""
    beside: Sequence[Mapping[str, Any]] = ()
    """Further arguments, with which every second call of a crossing is made: those that come next, and make sense."""
    often: int = 1
    """How often it is drawn, beside the others."""
    after: str = ""
    """The move that must have come before, such as a save before a load: if it is drawn, that is drawn with it."""
    shown_by: str = ""
    """The move that shows its effect: if it is drawn, that often follows."""
    writes: Sequence[str] = ()
    """The kinds of state that it may change; see ``states.KINDS``."""
    reads: Sequence[str] = ()
    """The kinds of state that it looks at: on which it depends what it does, rightly or by a subject's mistake."""
    reads_further: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """What else it looks at, by the layer of further crossings that came to ask for it."""
    apart: bool = False
    """Whether it has objects of its own: then it is crossed with models, and not with other moves."""

    defaults: Mapping[str, Any] = field(default_factory=dict)
    """The default of each argument, as the method's signature has it."""

    def law_of(self, arguments: Mapping[str, Any]) -> str:
        given = (
            law for name, law in self.laws.items() if arguments.get(name, self.defaults[name]) != self.defaults[name]
        )
        return next(given, self.law)

    def allowed(self, outline: Any, arguments: Mapping[str, Any], features: frozenset[str]) -> bool:
        """Return whether a call makes sense now, for a subject that claims these features."""
        nothing = inspect.Parameter.empty  # as a draw has it, if there are no values to draw from
        lacking = [name for name in self.required if arguments.get(name, nothing) is nothing]
        return not lacking and features.issuperset(self.needed(outline, arguments))

    def needed(self, outline: Any, arguments: Mapping[str, Any]) -> Iterator[str]:
        """Yield what a call with these arguments needs."""
        values = {**self.defaults, **arguments}
        yield from _needed(self.needs, outline, arguments, values)
        for name, needs in self.needs_of.items():
            if values[name] != self.defaults[name]:
                yield from _needed(needs, outline, arguments, values)

    @functools.cached_property
    def required(self) -> list[str]:
        """The arguments without a default."""
        return [name for name, value in self.defaults.items() if value is inspect.Parameter.empty]

    def arguments(self, kind: int, outline: Any) -> dict[str, Any] | None:
        """Return the arguments of a kind at this point of a script, or None if there are none."""
        return _now(self._every_kind[kind], outline)

    def with_more(self, given: Mapping[str, Any], turn: int, outline: Any) -> Iterator[dict[str, Any]]:
        """Yield these arguments with further ones, beginning with those whose turn it is."""
        for number in range(len(self.beside)):
            more = _now(self.beside[(turn + number) % len(self.beside)], outline)
            if more is not None and given.keys().isdisjoint(more):
                yield {**given, **more}

    def reads_up_to(self, layer: int = ALL) -> list[str]:
        """Return the kinds of state that crossings up to this layer know that it looks at."""
        return [
            *self.reads,
            *(kind for number, kinds in self.reads_further.items() if number <= layer for kind in kinds),
        ]

    def kind_reading(self, kind: str) -> int:
        """Return the number of the arguments with which it looks at a kind: what is not stated comes from it."""
        return 0 if kind in self.reads else min(range(len(self.kinds)), key=lambda number: len(self.kinds[number]))

    def kinds_up_to(self, layer: int = ALL) -> list[Mapping[str, Any]]:
        """Return the kinds of arguments that crossings up to this layer have; the first ones are of layer 0."""
        later = [kind for number in sorted(self.further) if number <= layer for kind in self.further[number]]
        return [*self.kinds, *later]

    @functools.cached_property
    def _every_kind(self) -> list[Mapping[str, Any]]:
        return self.kinds_up_to()


def _now(chosen: Mapping[str, Any], outline: Any) -> dict[str, Any] | None:
    """Return the values that arguments have at this point of a script, or None if one has none."""
    found = {name: value(outline) if callable(value) else value for name, value in chosen.items()}
    return None if None in found.values() else found


def _needed(needs: Needs, outline: Any, given: Mapping[str, Any], values: Mapping[str, Any]) -> Iterable[str]:
    if isinstance(needs, str):
        return (needs,)
    names = _arguments_of(needs)
    return needs(outline, **(given if names is None else {name: values[name] for name in names if name in values}))


@functools.cache
def _arguments_of(function: Callable[..., Any]) -> Sequence[str] | None:
    """Return the names of a function's arguments after the first, or None if it takes any."""
    _, *parameters = inspect.signature(function).parameters.values()
    takes_any = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
    return None if takes_any else [each.name for each in parameters]


def move(
    law: str, **known: Any
) -> Callable[[Callable[Concatenate[AnyPlayer, P], None]], Callable[Concatenate[AnyPlayer, P], None]]:
    """Make the decorated method a move. ``known`` are the fields of Move."""

    def decorate(act: Callable[Concatenate[AnyPlayer, P], None]) -> Callable[Concatenate[AnyPlayer, P], None]:
        signature = inspect.signature(act)
        _, *parameters = signature.parameters.values()
        facts = Move(act.__name__, law, defaults={each.name: each.default for each in parameters}, **known)

        @functools.wraps(act)
        def method(player: AnyPlayer, /, *args: P.args, **options: P.kwargs) -> None:
            __tracebackhide__ = True
            _, *given = signature.bind(player, *args, **options).arguments.items()
            anything: Any = player
            anything.make(facts, functools.partial(act, player, *args, **options), dict(given))

        method.move = facts  # type: ignore[attr-defined]
        return method

    return decorate


def moves_of(player: type) -> Mapping[str, Move]:
    """Return the moves of a player's class by their names, in the order in which they stand there."""
    return _moves_of(player)


@functools.cache  # behind a function: to mypy a class is not hashable
def _moves_of(player: type) -> Mapping[str, Move]:
    found: dict[str, Move] = {}
    for kind in reversed(player.__mro__):
        found |= {
            name: value.move for name, value in vars(kind).items() if isinstance(getattr(value, "move", None), Move)
        }
    return found


# --- values of arguments, from what an outline lists -------------------------------------------------


def first_of(numbers: Iterable[int]) -> int | None:
    return next(iter(numbers), None)


def first_trained(outline: Any) -> tuple[int, ...] | None:
    return tuple(outline.trained[:1]) or None


def last_trained(outline: Any) -> tuple[int, ...] | None:
    return tuple(outline.trained[-1:]) or None


@dataclass
class Writing:
    """A script while it is written: its calls, and the outline after them."""

    moves: Mapping[str, Move]
    features: frozenset[str]
    outline: Any
    calls: list[Call] = field(default_factory=list)

    def allows(self, name: str, arguments: Mapping[str, Any]) -> bool:
        return self.moves[name].allowed(self.outline, arguments, self.features)

    def add(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Add a call; an argument that is its default is left out."""
        defaults = self.moves[name].defaults
        given = {key: value for key, value in arguments.items() if value != defaults[key]}
        self.calls.append(Call(name, tuple(given.items())))
        self.moves[name].then(self.outline, **given)

    def try_to_add(self, name: str, arguments: Mapping[str, Any]) -> bool:
        """Add a call if it makes sense and the subject claims what it needs; return whether it did."""
        able = self.allows(name, arguments)
        if able:
            self.add(name, arguments)
        return able


def by_model(values: Sequence[Any]) -> Callable[[Any], Any]:
    """Return what chooses one of these values for an argument: another one for another model."""
    return lambda outline: values[zlib.crc32(repr(outline.model).encode()) % len(values)]


def subsets(values: Iterable[int]) -> Sequence[tuple[int, ...]]:
    """Return all subsets, from which an argument may be drawn: first the empty one."""
    numbers = [*values]
    return [chosen for count in range(len(numbers) + 1) for chosen in itertools.combinations(numbers, count)]


def often_nothing(chosen: Sequence[tuple[int, ...]]) -> Sequence[tuple[int, ...]]:
    """Return these values, and the empty one three times as often."""
    return [()] * 3 * len(chosen) + [*chosen]
