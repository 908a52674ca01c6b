"""The exceptions and warnings that a user of everyrank may see or name."""

from __future__ import annotations


class MisuseError(Exception):
    """everyrank was asked for something impossible; the text says what to do instead."""


class WorldFailed(Exception):
    """The verdict on a call of ``everyrank.run`` that did not end well; the text is the whole verdict."""


class RankLost(WorldFailed):
    """A rank died or left without a record. Name it in ``xfail(raises=...)`` to expect that."""


class WorldTimeout(WorldFailed):
    """A world missed its deadline, or was deadlocked. Name it in ``xfail(raises=...)`` to expect that."""


class LeakWarning(UserWarning):
    """A test left something behind on a rank."""


class RankWarning(UserWarning):
    """A warning of a category that only the rank knows; its text begins with the category."""
