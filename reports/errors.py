"""The reasons why a report cannot be made, one class each. The text is one line that says what to correct."""

from __future__ import annotations

from pathlib import Path

from everyrank.reports.text import plain


class ReportError(Exception):
    """A command cannot continue; the text is one line that says why."""


class RunFileError(ReportError):
    """A run file that cannot be trusted."""

    def __init__(self, path: Path, text: str, line: int = 0) -> None:
        # Both may hold text from elsewhere: line ends, control characters, a megabyte.
        super().__init__(plain(f"{path}:{line}: {text}" if line else f"{path}: {text}", 1000))
        self.path = path
        self.line = line


class CannotRead(RunFileError):
    """The file cannot be opened or cannot be read completely."""


class EmptyFile(RunFileError):
    """The file is empty."""


class Binary(RunFileError):
    """The file holds bytes that are not text."""


class TooLarge(RunFileError):
    """The file, or a line of it, is larger than any that a run writes."""


class NotOurs(RunFileError):
    """The file is not a run file: its first line is not a header."""


class NewerSchema(RunFileError):
    """The file was written by a newer everyrank, for a schema that this one does not know."""


class BadLine(RunFileError):
    """A line is not JSON, or does not match the schema."""


class NoOutcome(RunFileError):
    """The line of a case has no outcome."""


class Cut(RunFileError):
    """The file ends in the middle of a line."""


class NoFooter(RunFileError):
    """The run did not end: it was killed, or is still running."""


class Doubled(RunFileError):
    """The file has a second header, or lines after its footer: it is two files in one."""


class CaseTwice(RunFileError):
    """A case has more lines than the header lists it."""


class Unlisted(RunFileError):
    """The header does not list a case that has a line."""


class Miscounted(RunFileError):
    """The footer's counts of outcomes differ from the lines: lines are missing, or were added."""


class TwoSubjects(RunFileError):
    """Two tests report one case of one subject: two subjects have the same name."""


class CannotWrite(ReportError):
    """The result cannot be written to the requested path; the file there is unchanged."""


class NotOneRun(ReportError):
    """Run files that are not the shards of one run."""


class BadAlias(ReportError):
    """A table of aliases, or a line of it, cannot be used."""


class BadLedger(ReportError):
    """A ledger cannot be read, or cannot be changed without losing text that a person wrote."""


class NoSubject(ReportError):
    """The run does not have the requested subject, or it is not clear which subject is meant."""


class NoNights(ReportError):
    """The folder holds no run file that can be read."""
