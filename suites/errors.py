"""How a case can end other than well, each with a class of its own."""

from __future__ import annotations

#: How the text of a case begins that says nothing about any law.
FAULT = "the adapter is at fault, not the implementation"
UNUSABLE = "not even the plainest use works"


class Deviation(AssertionError):
    """The subject broke a law."""


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
