"""The exceptions of parity."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everyrank.parity.report import Report


class Parted(AssertionError):
    """The parallel model does not train as the plain one does."""

    __module__ = "everyrank.parity"  # where users import it from: a failure begins with this name

    def __init__(self, report: Report) -> None:
        super().__init__(report.text())
        self.report = report


class Unusable(ValueError):
    """What parity was given cannot be compared; the message says what to write instead."""

    __module__ = "everyrank.parity"
