"""How a case can end other than well, each with a class of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence

#: How the text of a case begins that says nothing about any law.
FAULT = "the adapter is at fault, not the implementation"
UNUSABLE = "not even the plainest use works"


class Deviation(AssertionError):
    """The subject broke a law.

    ``raised`` names the exception that it raised where it has no reason to, by its class and the classes above it;
    ``off`` is the largest relative error, where values were compared. A ledger's entry may speak of both.
    """

    def __init__(self, text: str = "", raised: Sequence[str] = (), off: float | None = None) -> None:
        super().__init__(text)
        self.raised = tuple(raised)
        self.off = off

    def packed(self) -> str:
        """As text, by which a rank hands it to the others."""
        return json.dumps([str(self), self.raised, self.off])

    @classmethod
    def unpacked(cls, packed: str, prefix: str) -> Deviation:
        """Another rank's, which the prefix names."""
        text, raised, off = json.loads(packed)
        return cls(prefix + text, raised, off)


def kinds(error: BaseException) -> tuple[str, ...]:
    """The names of an exception's class and of those above it, but for what every exception is."""
    above = [kind.__name__ for kind in type(error).__mro__[1:]]
    return type(error).__name__, *(name for name in above if name not in ("Exception", "BaseException", "object"))


class BrokenAdapter(Exception):
    """The adapter, not the implementation, is at fault; the text says what to mend."""


class Unusable(BrokenAdapter):
    """Not even the plainest use of the subject works, so that no law can be asked."""


class NotApplicable(Exception):
    """The law says nothing about this case; the text says why."""


class Vacuous(NotApplicable):
    """The reference did not move, so the case would prove nothing."""


class LedgerError(Exception):
    """A ledger that cannot be believed: a typo, an unknown kind, a duplicate, an entry for no case."""


class DeclarationError(Exception):
    """A subject that is declared wrongly; the text says what to write instead."""
