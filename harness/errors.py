"""The exceptions that a user of everyrank may meet or name."""

from __future__ import annotations


class MisuseError(Exception):
    """everyrank was asked for something that cannot be; the text says what to do instead."""


class RankLost(Exception):
    """A rank died or left without a record. Name it in ``xfail(raises=...)`` to expect that."""


class WorldTimeout(Exception):
    """A world missed its deadline, or could never have met it. Name it in ``xfail(raises=...)`` to expect that."""


class LeakWarning(UserWarning):
    """A test left something behind on a rank."""


class RankWarning(UserWarning):
    """A warning of a category that only the rank knows; its text begins with the category."""
