"""The base of the players of all contracts: subject and reference, side by side on one rank."""

from __future__ import annotations

import contextlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from everyrank import current_world
from everyrank.model.ledger import matching
from everyrank.suites.arena.groups import error_of
from everyrank.suites.compare.comparison import check
from everyrank.suites.engine.contract import contract
from everyrank.suites.engine.subject import Subject
from everyrank.suites.errors import BrokenAdapter, Deviation, RanksDiverged
from everyrank.suites.moves.data import decode
from everyrank.suites.moves.move import ALL, Move
from everyrank.suites.moves.script import Call, Script
from everyrank.suites.moves.together import Rejected, act_and_compare, together

if TYPE_CHECKING:
    from everyrank.suites.engine.case import Case


@dataclass
class Outline:
    """What a script has done so far, for a contract whose moves make sense at any time."""

    model: Any


class Player:
    """Makes moves on the subject and on the reference of this rank, and compares them after each, on all ranks.

    A subclass has a constructor that makes both, a ``compare`` and its moves: methods that are decorated by ``move``.
    All ranks make the same moves; if one of them deviates, all raise.
    """

    features: ClassVar[Mapping[str, str]] = {}
    """Features, each with a pattern: a subject is not asked for it if its ledger or lacks match such a case, or if it
    has no such case, since then no ledger could speak of it."""
    features_since: ClassVar[Mapping[str, int]] = {}
    """The layers of further crossings that came with a feature: no script of an earlier one needs it."""
    choices: ClassVar[Mapping[str, frozenset[str]]] = {}
    """For each choice of the contract the features that a subject is not asked for if it declares the choice."""
    claims: ClassVar[Mapping[str, frozenset[str]]] = {}
    """For each choice the features that a subject is asked for only if it declares the choice."""
    kinds: ClassVar[tuple[type, ...]] = ()
    """The dataclasses of a model: the model's own first. A printed test imports them from the player's module."""
    traits: ClassVar[Mapping[str, tuple[Any, ...]]] = {"size": (3,)}
    """What a model is like, with which moves are crossed: for each trait its values. Traits with the same name and a
    number, such as param1 and param2, have their values in common."""
    further: ClassVar[tuple[Mapping[str, tuple[Any, ...]], ...]] = ()
    """For each layer of further crossings, which follow those that are there, the values of some traits; a model
    without a trait is as it was before that came. So a language grows, and no script of a number changes."""
    further_scripts: ClassVar[Mapping[int, int]] = {}
    """How many scripts these layers have at the most, if not the usual number."""
    layers_changed_again: ClassVar[frozenset[int]] = frozenset()
    """The layers whose flows have another change between a save and a load, which the load takes back."""
    layers_before_again: ClassVar[int] = ALL
    """The last layer before the flows that come again; what later ones bring follows those."""
    layers_alone: ClassVar[frozenset[int]] = frozenset()
    """The layers that cover what has an event of theirs, and not what earlier layers have left."""
    named_by: ClassVar[tuple[str, ...]] = ()
    """The traits by which a model is called in the ids of cases; without one, all but the size."""
    called: ClassVar[Mapping[str, str]] = {}
    """How values of these traits are called there, if not as they are."""
    outline: ClassVar[Any] = Outline
    """A function of the model: what is known of its objects before the first move."""
    drawing: ClassVar[str] = ""
    """What draws a model, as ``package.module:ModelDrawing``; without it, each trait is drawn on its own."""
    crossings: ClassVar[str] = ""
    """The file beside the player's module in which its crossings are kept, if it takes long to make them."""
    holes: ClassVar[Mapping[str, str]] = {}
    """For each kind of state that no move changes before a save, or that none reads after, the reason."""
    flows: ClassVar[tuple[Mapping[str, Any], ...]] = ()
    """The traits of the models on which further crossings are made, for flows of state; see ``flow``."""
    further_flows: ClassVar[Mapping[int, tuple[Mapping[str, Any], ...]]] = {}
    """The same for flows up to a layer of further crossings; these follow those of that layer."""
    flow_layer: ClassVar[int] = 0
    """Up to which layer of further crossings these go; 0 stands for none."""
    flow_length: ClassVar[int] = 18
    """How many moves each of these has, without what shows the effect of the last one."""
    flows_again: ClassVar[Mapping[int, tuple[Mapping[str, Any], ...]]] = {}
    """The traits of models that came later, on which flows that there are already come again, by the last layer."""
    flows_from_start: ClassVar[bool] = False
    """Whether a state that is saved before anything was changed, and loaded later, is a flow as well."""
    sizes: ClassVar[tuple[int, ...]] = (3,)
    """The world sizes of draws."""
    driven: ClassVar[bool] = False
    """Whether a rank acts on what others have: then all compare when all have acted."""

    def __init__(self, subject: Subject, model: Any) -> None:
        self.subject, self.model = subject, model
        self.number = 0
        """The number of the current move, counted from 1; 0 before the first."""

    @classmethod
    def read(cls, text: str) -> Any:
        """Read a script, or a part of one, that ``encode`` has written."""
        return decode(text, (Script, Call, *cls.kinds))

    @classmethod
    def features_up_to(cls, layer: int) -> frozenset[str]:
        """Return the features that crossings up to this layer know."""
        return frozenset(feature for feature in cls.features if cls.features_since.get(feature, 0) <= layer)

    @classmethod
    def left_out(cls, cases: Sequence[Case]) -> frozenset[str]:
        """Return the features that the subject of these cases is not asked for."""
        excused = [case.short_id for case in cases if case.entry is not None or case.lack is not None]
        known = [case.short_id for case in cases]
        declared = cases[0].subject.declares if cases else ()
        left = [cls.choices.get(choice, frozenset()) for choice in declared]
        left += [names for choice, names in cls.claims.items() if choice not in declared]
        return frozenset().union(*left) | {
            feature
            for feature, pattern in cls.features.items()
            if matching(pattern, excused) or not matching(pattern, known)
        }

    # --- what a contract says about its moves ----------------------------------------------------------

    @classmethod
    def settled(cls, traits: Mapping[str, Any]) -> dict[str, Any]:
        """Return traits that go together, in place of these."""
        return dict(traits)

    @classmethod
    def label(cls, traits: Mapping[str, Any]) -> str:
        """Return how a model with these traits is called in the ids of cases; of an optimizer, the class counts."""
        named = cls.named_by or tuple(name for name in traits if name != "size")
        texts = {name: str(traits[name]) for name in named}
        texts = {name: text.split("-")[0] if name == "optimizer" else text for name, text in texts.items()}
        return "-".join(cls.called.get(text, text) for text in texts.values())

    @classmethod
    def model_of(cls, traits: Mapping[str, Any], features: frozenset[str]) -> Any:
        """Return the model with these traits, as far as a subject with these features claims them."""
        return cls.kinds[0](**traits)

    @classmethod
    def fixtures_for(cls, size: int) -> tuple[str, ...] | None:
        """Return the rank fixtures of a script in a world of this size, if they are not the contract's."""
        return None

    @classmethod
    def needed(cls, model: Any) -> Iterator[str]:
        """Yield the features that a model needs, whatever is done with it."""
        return iter(())

    @classmethod
    def draw_model(cls, drawing: Any) -> Any:
        """Draw a model."""
        if cls.drawing:
            made = pkgutil.resolve_name(cls.drawing)(drawing.draw, drawing.size, drawing.features)
            return made.make()
        return cls.model_of(cls.settled({**_drawn(cls.traits, drawing), "size": drawing.size}), drawing.features)

    @classmethod
    def simpler(cls, model: Any) -> Iterator[Any]:
        """Yield simpler models, with which a script may fail as well."""
        return iter(())

    @classmethod
    @contextlib.contextmanager
    def stage(cls, model: Any) -> Iterator[None]:
        """What stands around the life of the objects."""
        yield

    def compare(self) -> str:
        """Raise Deviation if subject and reference differ; return a text that must be the same on all ranks."""
        raise NotImplementedError

    def check(self, holds: bool, text: str) -> None:
        """Raise a Deviation with this text unless a condition holds."""
        check(holds, text)

    def close(self) -> None:
        """End what goes on beside the moves."""

    def end(self) -> str:
        """End what the moves have begun, and compare that; return a text that must be the same on all ranks."""
        return ""

    def verdict(self) -> None:
        """Raise what differs at the end. All ranks raise alike."""
        __tracebackhide__ = True
        together("at the end", self.end)

    def attempt(self, act: Callable[[], object]) -> Exception | None:
        """Act, and return the error, which is raised when all ranks have met."""
        return error_of(act)

    # --- making moves ------------------------------------------------------------------------------------

    def make(self, move: Move, act: Callable[[], None], arguments: Mapping[str, Any]) -> None:
        """Make a move on this rank, and compare. All ranks raise alike."""
        __tracebackhide__ = True
        self.number += 1
        label = f"{move.law_of(arguments)}: move {self.number}, {Call(move.name, tuple(arguments.items()))}"
        act_and_compare(label, act, self.compare, self.driven)


class LawPlayer(Player):
    """Makes the moves of one law: it finds all that differs, and raises it at the end.

    A player of scripts makes each move on all ranks, and ends at the first difference on one of them. A law names
    each step that deviates, and a rank that cannot go on ends at once: the arena lets all ranks end alike. A contract
    mixes this into its moves, and gives it sides that compare for a verdict.
    """

    sides: Any

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.late: list[str] = []
        """What did not hold besides values, which it must not hide."""

    def make(self, move: Move, act: Callable[[], None], arguments: Mapping[str, Any]) -> None:
        """Make a move on this rank, and compare for the verdict."""
        __tracebackhide__ = True
        self.number += self.counts(move)
        act()
        self.find(move)

    def counts(self, move: Move) -> bool:
        """Return whether a move has a number of its own."""
        return True

    def find(self, move: Move) -> None:
        """Note what differs after a move."""
        if not move.apart:
            self.sides.compare()

    def check(self, holds: bool, text: str) -> None:
        self.late += [] if holds else [text]

    def attempt(self, act: Callable[[], object]) -> None:
        act()

    def verdict(self) -> None:
        """Raise what differs in values, or else what did not hold besides."""
        if "sides" in vars(self):  # some laws have moves apart alone
            self.sides.verdict()
        check(not self.late, "\n  ".join(self.late))


AnyPlayer = TypeVar("AnyPlayer", bound=Player)


@contextlib.contextmanager
def judged(player: AnyPlayer) -> Iterator[AnyPlayer]:
    """Give a player, let it come to its verdict at the end, and close it."""
    __tracebackhide__ = True
    try:
        yield player
        player.verdict()
    finally:
        player.close()


def _drawn(traits: Mapping[str, tuple[Any, ...]], drawing: Any) -> dict[str, Any]:
    return {name: drawing.one_of(*values) for name, values in traits.items()}


@contextlib.contextmanager
def playing(subject: Subject, model: Any) -> Iterator[Any]:
    """Give the player of a subject's contract, with its objects made, in a test of ``model.size`` ranks."""
    __tracebackhide__ = True
    kind: type[Player] = contract(subject.contract).part("player")
    world = current_world()
    if model.size != world.size:
        raise BrokenAdapter(f"the model is for {model.size} ranks, and this world has {world.size}")
    with kind.stage(model):
        made: list[Player] = []
        act_and_compare(
            "when the objects are made",
            lambda: made.append(kind(subject, model)),
            lambda: made[0].compare(),
            kind.driven,
        )
        with judged(made[0]) as player:
            yield player


def play(subject: Subject, script: Script) -> str | None:
    """Play a script on all ranks.

    Return, on all ranks alike, a text that says what differs, an empty text, or None if the reference refused.
    """
    try:
        play_or_raise(subject, script)
    except RanksDiverged:
        raise
    except Deviation as deviation:
        return str(deviation)
    except Rejected:
        return None
    return ""


def play_or_raise(subject: Subject, script: Script) -> None:
    """Play a script on all ranks; raise Deviation or Rejected, on all alike."""
    __tracebackhide__ = True
    with playing(subject, script.model) as player:
        for each in script.moves:
            getattr(player, each.move)(**dict(each.arguments))
