"""The exceptions of the kit: each kind of bad end of a case has its own class."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType

#: How the text of a case begins if the case says nothing about its law.
FAULT = "the adapter is at fault, not the implementation"
UNUSABLE = "not even the plainest use works"

#: The note of a rank whose subject lacks capabilities that it does not declare: the error of each, by its name.
MISSING = "missing"

#: The note of a rank that fails at what its subject declares nothing of, and a property of its case: the ledgers that
#: the subject could build on, and that state this deviation.
STATED = "stated-by"

#: The property of a red case that may have the cause of another one: the first of its law and subject in the run.
LIKE = "red-like"

#: The property of a case whose script was played to its end: the events that its subject has of it.
CROSSED = "crossed"


def declaration(names: Iterable[str]) -> str:
    """Return what a subject writes to declare that it lacks these capabilities."""
    return f"lacks={json.dumps(sorted(names))}"


def undeclared(subject: str, missing: Iterable[str]) -> str:
    """Return the sentence about capabilities that are missing."""
    return f"{subject} lacks what it does not declare: add it, or paste {declaration(missing)} into its Subject"


@dataclass(frozen=True)
class Explanation:
    """What a deviation looks like: its location, the id of a pattern, and what it says there."""

    location: str
    pattern: str
    text: str

    @property
    def news(self) -> str:
        """The explanation in one line."""
        return f"{self.location}: {self.text}"


class Deviation(AssertionError):
    """The subject broke a law.

    ``raised`` names the class and the bases of an exception that the subject had no reason to raise. ``off`` is the
    largest relative error if values were compared. An entry of a ledger may state both. ``explain`` finds out what
    the deviation looks like. That may take a while, so it is asked only for a deviation that somebody will read.
    """

    def __init__(
        self,
        text: str = "",
        raised: Sequence[str] = (),
        off: float | None = None,
        explain: Callable[[], Explanation | None] | None = None,
    ) -> None:
        super().__init__(text)
        self.raised = tuple(raised)
        self.off = off
        self._explain = explain

    def explanation(self) -> Explanation | None:
        """Return what the deviation looks like, if it looks like anything that is known."""
        return self._explain() if self._explain is not None else None

    def packed(self) -> str:
        """Return the text by which a rank passes this deviation on to the others."""
        return json.dumps([str(self), self.raised, self.off])

    @classmethod
    def unpacked(cls, packed: str, prefix: str) -> Deviation:
        """Return another rank's deviation; the prefix names that rank."""
        text, raised, off = json.loads(packed)
        return cls(prefix + text, raised, off)


def kinds(error: BaseException) -> tuple[str, ...]:
    """Return the names of an exception's class and of its bases, except those of every exception."""
    above = [kind.__name__ for kind in type(error).__mro__[1:]]
    return type(error).__name__, *(name for name in above if name not in ("Exception", "BaseException", "object"))


class RanksDiverged(Deviation):
    """The ranks are at different points of a case, so nothing more can be done in this world."""


class BrokenAdapter(Exception):
    """The adapter, not the implementation, is at fault; the text says what to fix."""


class Unusable(BrokenAdapter):
    """Not even the plainest use of the subject works, so no law can be checked."""


class NotApplicable(Exception):
    """The law does not apply to this case; the text gives the reason."""


class Vacuous(NotApplicable):
    """The reference did not move, so the case would prove nothing."""


class LedgerError(Exception):
    """A ledger is wrong: it has a typo, an unknown kind, a duplicate, or an entry that matches no case."""


class DeclarationError(Exception):
    """A subject is declared wrongly; the text says what to write instead."""


def kind_of(value: object) -> str:
    """Describe a value that is no subject: ``the class Trainer``, ``a list``, ``'trainer'``; a repr has addresses."""
    name = getattr(value, "__name__", "")
    if isinstance(value, type | ModuleType):
        return f"the {'class' if isinstance(value, type) else 'module'} {name}"
    if callable(value) and name:
        return f"the function {name}"
    if value is None or isinstance(value, str | int | float):
        return repr(value)
    return f"{'an' if type(value).__name__[0] in 'AEIOUaeiou' else 'a'} {type(value).__name__}"
