"""Read a run file, and trust it only if it is whole.

A file with a footer reports a whole run. A case that its header lists and that has no line was not run, for example
after ``-x``. A file without a footer was left by a run that was killed; it is read with ``partial`` only.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO, NoReturn

import msgspec
from everyrank.model.counts import count
from everyrank.model.outcome import ENDINGS, Ending
from everyrank.reports.errors import (
    BadLine,
    Binary,
    CannotRead,
    CaseTwice,
    Cut,
    Doubled,
    EmptyFile,
    Miscounted,
    NewerSchema,
    NoFooter,
    NoOutcome,
    NotOurs,
    TooLarge,
    TwoSubjects,
    Unlisted,
)
from everyrank.reports.runfile.conclusion import Conclusion, conclude
from everyrank.reports.runfile.inputs import Inflated, is_compressed, open_input
from everyrank.reports.runfile.model import SCHEMA, AnyLine, CaseLine, Footer, Header
from everyrank.reports.runfile.not_run import not_run_cases

#: The limit of a file in bytes. A run of 100,000 cases needs a third of it. A larger file is not read into memory.
LARGEST = 512 * 1024**2
#: The limit of a line in bytes. A header that lists a million cases is shorter.
LONGEST = 128 * 1024**2
#: The limits of a run in cases, and of a file in lines, which may be blank. To read that many takes seconds.
CASES, LINES = 200_000, 250_000

#: How every run file begins.
HEADER = b'{"line":"header"'

#: The exceptions of decoding; the last occurs at a hundred thousand open brackets.
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

_DECODER: msgspec.json.Decoder[AnyLine] = msgspec.json.Decoder(AnyLine)


@dataclass(frozen=True)
class Run:
    """The contents of a run file."""

    path: Path
    header: Header
    reported: tuple[CaseLine, ...]  # the cases that have a line, in the order in which they ended
    footer: Footer | None

    @property
    def complete(self) -> bool:
        """Whether the run finished."""
        return self.footer is not None

    @cached_property
    def cases(self) -> tuple[CaseLine, ...]:
        """All cases that the header lists; those without a line were not run."""
        return self.reported + not_run_cases(self.header.cases, self.reported, self.complete)

    @cached_property
    def counts(self) -> dict[Ending, int]:
        """The number of cases by outcome, the most urgent outcome first."""
        counted = Counter(case.outcome for case in self.cases)
        return {ending: counted[ending] for ending in ENDINGS if counted[ending]}

    @cached_property
    def conclusion(self) -> Conclusion:
        """The state of the whole run, with its reasons."""
        return conclude(self.counts, self.footer, self.came)

    @property
    def came(self) -> str:
        """How many of the cases have a line."""
        return f"{len(self.reported):,} of {count(len(self.header.cases), 'case')} reported"


def read(path: Path | str, partial: bool = False) -> Run:
    """Read a run file; with ``partial``, also a file of a run that was killed. Raise a `RunFileError`."""
    path = Path(path)
    try:
        with open_input(path) as file:
            return _read(path, file, partial)
    except OSError as error:
        raise CannotRead(path, f"cannot be read: {error.strerror or error}") from None


class _First(msgspec.Struct):
    """The part of a header that shows whether the rest can be read. A newer header may hold unknown values."""

    line: str
    schema: int


class _Loose(msgspec.Struct):
    """The part of a line outside the schema that shows what is wrong with it."""

    line: str = ""
    id: str = ""
    outcome: msgspec.Raw = msgspec.Raw()


def _read(path: Path, file: BinaryIO, partial: bool) -> Run:
    if os.fstat(file.fileno()).st_size > LARGEST:
        raise TooLarge(path, f"larger than {LARGEST >> 20} MiB: no run writes a file this large")
    inflated = Inflated(file) if is_compressed(file) else None
    lines = _lines(path, file if inflated is None else io.BufferedReader(inflated))
    number, raw = next(lines, (0, b""))
    if not raw and not (inflated and inflated.cut):
        raise EmptyFile(path, "empty: its run never began")
    header = _header(path, number, raw)
    reported, footer = _rest(path, lines, header, partial)
    if footer is not None:
        if inflated is not None and inflated.cut and not partial:
            raise Cut(path, "cut at the end of its compressed data: the copy broke off")
        _check_counts(path, header, reported, footer)
    elif not partial:
        run = Run(path, header, reported, None)
        raise NoFooter(
            path, f"no footer: its run was killed, or is still running ({run.came}); --partial reads it as it is"
        )
    return Run(path, header, reported, footer)


def _lines(path: Path, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their numbers."""
    number = total = 0
    while raw := file.readline(LONGEST + 1):
        number, total = number + 1, total + len(raw)
        if number > LINES:
            raise TooLarge(path, f"too large: more than {LINES:,} lines, and no run writes this many", number)
        if len(raw) > LONGEST or total > LARGEST:
            raise TooLarge(path, "too large: no run writes a line this long, or this many lines", number)
        if not raw.isspace():
            yield number, raw


def _header(path: Path, number: int, raw: bytes) -> Header:
    if _is_binary(raw):
        raise Binary(path, "binary: a run file is lines of JSON", number)
    try:
        first = msgspec.json.decode(raw, type=_First)
    except _UNREADABLE:
        if HEADER.startswith(raw[: len(HEADER)]) and not raw.endswith(b"\n"):
            raise Cut(path, "cut in the middle of its header", number) from None
        raise NotOurs(path, "not a run file of everyrank: its first line is no header", number) from None
    if first.line != "header":
        raise NotOurs(path, f"not a whole run file: its first line is no header but {first.line!r}", number)
    if first.schema > SCHEMA:
        text = (
            f"written by a newer everyrank (schema {first.schema}; this one reads up to {SCHEMA}): upgrade to read it"
        )
        raise NewerSchema(path, text, number)
    line = _decoded(path, number, raw)
    assert isinstance(line, Header)
    if len(line.cases) > CASES:
        text = f"too large: its run has {len(line.cases):,} cases, and a run file may have {CASES:,}"
        raise TooLarge(path, f"{text}: split the run with --shard, and read the files without merging them", number)
    return line


def _rest(
    path: Path, lines: Iterator[tuple[int, bytes]], header: Header, partial: bool
) -> tuple[tuple[CaseLine, ...], Footer | None]:
    """Return the cases and the footer. Check each line against the header and against the lines before it."""
    reported: list[CaseLine] = []
    lines_left = Counter(header.cases)
    tests: dict[tuple[str, str], str] = {}
    footer: Footer | None = None
    for number, raw in lines:
        try:
            line = _decoded(path, number, raw)
        except Cut:
            if partial and footer is None:
                break
            raise
        if footer is not None or isinstance(line, Header):
            fault = "lines after its footer" if footer is not None else "a second header"
            raise Doubled(path, f"{fault}: two run files in one", number)
        if isinstance(line, Footer):
            footer = line
            continue
        _check_case(path, number, line, lines_left)
        _check_subject(path, number, line, tests)
        lines_left[line.id] -= 1
        reported.append(line)
    return tuple(reported), footer


def _decoded(path: Path, number: int, raw: bytes) -> AnyLine:
    try:
        return _DECODER.decode(raw)
    except _UNREADABLE as error:
        _refuse(path, number, raw, error)


def _refuse(path: Path, number: int, raw: bytes, error: Exception) -> NoReturn:
    """Raise an error that says what is wrong with a line that cannot be decoded."""
    if not raw.endswith(b"\n"):
        # Only the last line can lack its line end.
        raise Cut(path, "cut in the middle of a line: its run was killed, or the copy broke off", number)
    if _is_binary(raw):
        raise Binary(path, "binary: a run file is lines of JSON", number)
    if isinstance(error, msgspec.ValidationError):
        loose = _Loose()
        with contextlib.suppress(*_UNREADABLE):
            loose = msgspec.json.decode(raw, type=_Loose)
        if loose.line == "case" and bytes(loose.outcome) in (b"", b'""', b"null"):
            raise NoOutcome(path, f"the case {loose.id or '(without an id)'} has no outcome", number)
        raise BadLine(path, f"not a line of a run file: {error}", number)
    raise BadLine(path, f"not JSON: {error}", number)


def _is_binary(raw: bytes) -> bool:
    if b"\0" in raw:
        return True
    try:
        raw.decode()
    except UnicodeDecodeError:
        return True
    return False


def _check_case(path: Path, number: int, case: CaseLine, lines_left: Counter[str]) -> None:
    if lines_left[case.id] > 0:
        return
    if case.id in lines_left:
        raise CaseTwice(path, f"the case {case.id} has two lines", number)
    raise Unlisted(path, f"the header does not list the case {case.id}", number)


def _check_subject(path: Path, number: int, case: CaseLine, tests: dict[tuple[str, str], str]) -> None:
    """Raise `TwoSubjects` if two test functions report one case. One function may report it under several ids."""
    if not case.subject:
        return
    test = case.id.partition("[")[0]
    first = tests.setdefault((case.subject, case.case), test)
    if first != test:
        text = f"two subjects are named {case.subject!r}: {first} and {test} both report {case.case}"
        raise TwoSubjects(path, text, number)


def _check_counts(path: Path, header: Header, reported: tuple[CaseLine, ...], footer: Footer) -> None:
    """Compare the footer's counts with the lines. It may count the cases without a line as not-run, or not at all."""
    counted: Counter[str] = Counter(case.outcome for case in reported)
    silent = len(header.cases) - len(reported)
    for ending in sorted({*counted, *footer.counts}):
        in_footer, in_lines = footer.counts.get(ending, 0), counted[ending]
        spare = silent if ending == "not-run" else 0
        if not in_lines <= in_footer <= in_lines + spare:
            text = (
                f"the footer counts {in_footer:,} {ending}, the lines {in_lines:,}: lines are missing, or were added"
            )
            raise Miscounted(path, text)
