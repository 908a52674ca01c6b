"""Read a run file, and believe it only if it is whole.

A file with a footer tells of a whole run: a case that it lists and does not tell was not run (after ``-x``, say). One
without a footer was left by a run that was killed; it is read with ``partial`` only, and says how far the run came.
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
from everyrank.reports.conclusion import Conclusion, conclude
from everyrank.reports.errors import (
    BadLine,
    Binary,
    CannotRead,
    CaseTwice,
    Cut,
    Doubled,
    Empty,
    Miscounted,
    NewerSchema,
    NoFooter,
    NoOutcome,
    NotOurs,
    TooLarge,
    TwoSubjects,
    Unlisted,
)
from everyrank.reports.inputs import Inflated, is_compressed, open_input
from everyrank.reports.model import ENDINGS, SCHEMA, AnyLine, CaseLine, Ending, Footer, Header
from everyrank.reports.untold import not_run_cases

#: Bytes. A run of 100,000 cases is a third of it; what is larger is not read into memory to find out what it is.
LARGEST = 512 * 1024**2
#: Bytes in one line: a header that lists a million cases has fewer.
LONGEST = 128 * 1024**2

#: How every run file begins.
HEADER = b'{"line":"header"'

#: What decoding may raise; the last, at a hundred thousand open brackets.
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

_DECODER: msgspec.json.Decoder[AnyLine] = msgspec.json.Decoder(AnyLine)


@dataclass(frozen=True)
class Run:
    """What a run file tells."""

    path: Path
    header: Header
    told: tuple[CaseLine, ...]  # in the order in which they ended
    footer: Footer | None

    @property
    def complete(self) -> bool:
        """Whether the run came to its end."""
        return self.footer is not None

    @cached_property
    def cases(self) -> tuple[CaseLine, ...]:
        """All cases that the header lists; those that were never told were not run."""
        return self.told + not_run_cases(self.header.cases, self.told, self.complete)

    @cached_property
    def counts(self) -> dict[Ending, int]:
        """How many cases ended in which way, the most urgent first."""
        counted = Counter(case.outcome for case in self.cases)
        return {ending: counted[ending] for ending in ENDINGS if counted[ending]}

    @cached_property
    def conclusion(self) -> Conclusion:
        """What the run comes to as a whole."""
        return conclude(self.counts, self.footer, self.came)

    @property
    def green(self) -> bool:
        """Whether the run is whole and nothing in it, or beside it, needs a person."""
        return self.conclusion.as_declared

    @property
    def came(self) -> str:
        """How far the run came, in words."""
        listed, told = len(self.header.cases), len(self.told)
        return f"{told:,} of {listed:,} cases reported"


def read(path: Path | str, partial: bool = False) -> Run:
    """Read a run file; with ``partial`` also one of a run that was killed. Raises a `RunFileError`."""
    path = Path(path)
    try:
        with open_input(path) as file:
            return _read(path, file, partial)
    except OSError as error:
        raise CannotRead(path, f"cannot be read: {error.strerror or error}") from None


class _First(msgspec.Struct):
    """As much of a header as tells whether the rest can be read; a newer one may hold what we do not know."""

    line: str
    schema: int


class _Loose(msgspec.Struct):
    """As much of a line that is not of the schema as tells what is wrong with it."""

    line: str = ""
    id: str = ""
    outcome: msgspec.Raw = msgspec.Raw()


def _read(path: Path, file: BinaryIO, partial: bool) -> Run:
    if os.fstat(file.fileno()).st_size > LARGEST:
        raise TooLarge(path, f"larger than {LARGEST >> 20} MiB: no run leaves such a file")
    inflated = Inflated(file) if is_compressed(file) else None
    lines = _lines(path, file if inflated is None else io.BufferedReader(inflated))
    number, raw = next(lines, (0, b""))
    if not raw and not (inflated and inflated.cut):
        raise Empty(path, "empty: the run that was to write it never began")
    header = _header(path, number, raw)
    told, footer = _rest(path, lines, header, partial)
    if footer is not None:
        if inflated is not None and inflated.cut and not partial:
            raise Cut(path, "cut at the end of its compressed data: the copy broke off")
        _check_counts(path, header, told, footer)
    elif not partial:
        run = Run(path, header, told, None)
        raise NoFooter(
            path, f"no footer: its run was killed, or is still going on ({run.came}); --partial reads it as it is"
        )
    return Run(path, header, told, footer)


def _lines(path: Path, file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The lines that hold something, with their numbers."""
    number = total = 0
    while raw := file.readline(LONGEST + 1):
        number, total = number + 1, total + len(raw)
        if len(raw) > LONGEST or total > LARGEST:
            raise TooLarge(path, "too large: no run leaves such a line, or so many", number)
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
    return line


def _rest(
    path: Path, lines: Iterator[tuple[int, bytes]], header: Header, partial: bool
) -> tuple[tuple[CaseLine, ...], Footer | None]:
    """The cases and the footer, each line checked against the header and against those before it."""
    told: list[CaseLine] = []
    left = Counter(header.cases)
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
            what = "goes on after its footer" if footer is not None else "a second header"
            raise Doubled(path, f"{what}: two run files in one", number)
        if isinstance(line, Footer):
            footer = line
            continue
        _check_case(path, number, line, left)
        _check_subject(path, number, line, tests)
        left[line.id] -= 1
        told.append(line)
    return tuple(told), footer


def _decoded(path: Path, number: int, raw: bytes) -> AnyLine:
    try:
        return _DECODER.decode(raw)
    except _UNREADABLE as error:
        _refuse(path, number, raw, error)


def _refuse(path: Path, number: int, raw: bytes, error: Exception) -> NoReturn:
    """Say what is wrong with a line that cannot be decoded."""
    if not raw.endswith(b"\n"):
        # Only the last line lacks its end.
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


def _check_case(path: Path, number: int, case: CaseLine, left: Counter[str]) -> None:
    if left[case.id] > 0:
        return
    if case.id in left:
        raise CaseTwice(path, f"the case {case.id} is told twice", number)
    raise Unlisted(path, f"the case {case.id} is not one that the header lists", number)


def _check_subject(path: Path, number: int, case: CaseLine, tests: dict[tuple[str, str], str]) -> None:
    """One test function may tell of a case under several ids; two functions may not."""
    if not case.subject:
        return
    test = case.id.partition("[")[0]
    first = tests.setdefault((case.subject, case.case), test)
    if first != test:
        text = f"two subjects are named {case.subject!r}: {first} and {test} both tell of {case.case}"
        raise TwoSubjects(path, text, number)


def _check_counts(path: Path, header: Header, told: tuple[CaseLine, ...], footer: Footer) -> None:
    """The footer counts what was told; whether it counts what was never told among not-run is left to it."""
    counted: Counter[str] = Counter(case.outcome for case in told)
    silent = len(header.cases) - len(told)
    for ending in sorted({*counted, *footer.counts}):
        says, tells = footer.counts.get(ending, 0), counted[ending]
        spare = silent if ending == "not-run" else 0
        if not tells <= says <= tells + spare:
            text = f"the footer counts {says:,} {ending}, the lines tell {tells:,}: lines are missing, or were added"
            raise Miscounted(path, text)
