"""Each way in which a report cannot be made, with a class of its own; the text is one line that one can act on."""

from __future__ import annotations

from pathlib import Path

from everyrank.reports.words import plain


class ReportError(Exception):
    """A command cannot go on; its text is one line that says why."""


class RunFileError(ReportError):
    """A run file that is not to be believed."""

    def __init__(self, path: Path, text: str, line: int = 0) -> None:
        # Both may hold what somebody else wrote: line ends, controls, a megabyte.
        super().__init__(plain(f"{path}:{line}: {text}" if line else f"{path}: {text}", 1000))
        self.path = path
        self.line = line


class CannotRead(RunFileError):
    """The file cannot be opened, or not be read to its end."""


class Empty(RunFileError):
    """The file holds nothing."""


class Binary(RunFileError):
    """The file holds bytes that are no text."""


class TooLarge(RunFileError):
    """The file, or a line of it, is larger than any that a run leaves."""


class NotOurs(RunFileError):
    """The file is no run file: its first line is no header."""


class NewerSchema(RunFileError):
    """The file was written by a newer everyrank, for a schema that this one does not know."""


class BadLine(RunFileError):
    """A line is no JSON, or not what the schema says."""


class NoOutcome(RunFileError):
    """The line of a case does not say how it ended."""


class Cut(RunFileError):
    """The file ends in the middle of a line."""


class NoFooter(RunFileError):
    """The run did not come to its end: it was killed, or is still going on."""


class Doubled(RunFileError):
    """The file holds a second header, or goes on after its footer: it is two files in one."""


class CaseTwice(RunFileError):
    """A case is told more often than the header lists it."""


class Unlisted(RunFileError):
    """A case is told that the header does not list."""


class Miscounted(RunFileError):
    """The footer counts other outcomes than the lines tell: some are missing, or were added."""


class TwoSubjects(RunFileError):
    """Two tests tell of one case of one subject: two subjects have one name."""


class CannotWrite(ReportError):
    """The result cannot be kept where it was asked for; what was there before is as it was."""


class BadAlias(ReportError):
    """A table of aliases, or a line of it, that cannot be used."""


class BadLedger(ReportError):
    """A ledger that cannot be read, or not be changed without losing what a person wrote into it."""


class NoSubject(ReportError):
    """A subject was meant that the run does not have, or it is not clear which one."""


class NoNights(ReportError):
    """A folder that holds no run file which can be read."""
