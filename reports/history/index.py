"""Keep an index of a folder of run files, in SQLite. It is made from the files, and updated when they change."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median

import msgspec
from everyrank.model.outcome import ENDINGS, RED
from everyrank.reports.errors import CannotRead, NoFooter, RunFileError
from everyrank.reports.runfile.model import CaseLine
from everyrank.reports.runfile.read import Run, read
from everyrank.reports.runfile.source import of_header

#: The index of a folder, kept in it.
NAME = ".everyrank-history.sqlite"

#: The version of the index. An index of another version is made again.
_VERSION = 4

_TABLES = """
    CREATE TABLE nights (
        night INTEGER PRIMARY KEY, path TEXT UNIQUE, size INTEGER, changed INTEGER, problem TEXT,
        started REAL, kit TEXT, torch TEXT, whole INTEGER, came TEXT, seconds REAL, counts TEXT, same TEXT,
        source TEXT, state TEXT, reasons TEXT
    );
    CREATE TABLE names (
        name INTEGER PRIMARY KEY, subject TEXT, contract TEXT, law TEXT, title TEXT,
        UNIQUE (subject, contract, law, title)
    );
    CREATE TABLE outcomes (
        night INTEGER, name INTEGER, red INTEGER, ending TEXT, PRIMARY KEY (night, name)
    ) WITHOUT ROWID;
    CREATE INDEX by_name ON outcomes (name);
    CREATE TABLE laws (
        night INTEGER, subject TEXT, contract TEXT, law TEXT, counts TEXT,
        seconds REAL, relative REAL, ulps REAL, PRIMARY KEY (night, subject, contract, law)
    ) WITHOUT ROWID;
"""

LawKey = tuple[str, str, str]

#: A law, and the case by which it is known from night to night.
CaseKey = tuple[str, str, str, str]


def case_key(case: CaseLine) -> CaseKey:
    """Return the law and the case. A test without a subject is identified by its id."""
    return (*law_of(case), case.case or case.id)


def law_of(case: CaseLine) -> LawKey:
    """Return the subject, the contract and the law. A test without a subject has its function as its law."""
    return (case.subject, case.contract, case.law) if case.law else ("", "", case.id.partition("[")[0])


@contextlib.contextmanager
def index(folder: Path, rebuild: bool = False) -> Iterator[sqlite3.Connection]:
    """Open the index of all run files below the folder, up to date; in memory if the folder cannot be written."""
    files = sorted(file for kind in ("*.jsonl", "*.jsonl.gz") for file in folder.rglob(kind) if not file.is_dir())
    if rebuild:
        forget(folder)
    base = _kept(folder, files) or _in_memory(folder, files)
    with contextlib.closing(base):
        yield base


def forget(folder: Path) -> None:
    """Remove the index. It can be made again, and a folder without nights needs none."""
    with contextlib.suppress(OSError):
        os.unlink(folder / NAME)


def _kept(folder: Path, files: Sequence[Path]) -> sqlite3.Connection | None:
    """Open the index that is kept. Make it again if it is broken or of another version."""
    for _ in range(2):
        base = None
        try:
            base = sqlite3.connect(folder / NAME)
            _prepare(base)
            _refresh(base, folder, files)
            return base
        except sqlite3.DatabaseError as error:
            if base is not None:
                base.close()
            if isinstance(error, sqlite3.OperationalError):
                return None  # read-only, or locked by another process: the index in memory does as well
            forget(folder)
    return None


def _in_memory(folder: Path, files: Sequence[Path]) -> sqlite3.Connection:
    base = sqlite3.connect(":memory:")
    _prepare(base)
    _refresh(base, folder, files)
    return base


def _prepare(base: sqlite3.Connection) -> None:
    """Make the tables if there are none yet."""
    version, tables = (base.execute(sql).fetchone()[0] for sql in (
        "PRAGMA user_version", "SELECT count(*) FROM sqlite_master"
    ))  # fmt: skip
    if version == _VERSION:
        return
    if tables:
        raise sqlite3.DatabaseError("an index of another version")
    base.executescript(_TABLES)
    base.execute(f"PRAGMA user_version = {_VERSION}")


def _refresh(base: sqlite3.Connection, folder: Path, files: Iterable[Path]) -> None:
    """Read the files that are new or were changed, and forget the files that are gone."""
    known = {path: (size, changed) for path, size, changed in base.execute("SELECT path, size, changed FROM nights")}
    with base:
        for file in files:
            path = os.path.relpath(file, folder)
            try:
                stat = file.stat()
                now = (stat.st_size, stat.st_mtime_ns)
            except OSError:
                now = (-1, -1)
            if known.pop(path, None) != now:
                _forget(base, path)
                _add(base, path, file, now)
        for path in known:
            _forget(base, path)


def _forget(base: sqlite3.Connection, path: str) -> None:
    for (night,) in base.execute("SELECT night FROM nights WHERE path = ?", (path,)).fetchall():
        for table in ("outcomes", "laws", "nights"):
            base.execute(f"DELETE FROM {table} WHERE night = ?", (night,))


def _add(base: sqlite3.Connection, path: str, file: Path, stamp: tuple[int, int]) -> None:
    try:
        try:
            run = read(file)
        except NoFooter:
            run = read(file, partial=True)
    except RunFileError as error:
        # A file that may not be read now may become readable without a change of its time or size.
        size, changed = (-1, -1) if isinstance(error, CannotRead) else stamp
        row = (path, size, changed, str(error))
        base.execute("INSERT INTO nights (path, size, changed, problem) VALUES (?, ?, ?, ?)", row)
        return
    head = run.header
    counts = msgspec.json.encode(Counter(case.outcome for case in run.reported)).decode()
    seconds = run.footer.seconds if run.footer else None
    same = msgspec.json.encode([head.started, head.command, len(head.cases)]).decode()
    source = msgspec.json.encode(of_header(head)).decode()
    reasons = msgspec.json.encode([reason.text for reason in run.conclusion.not_in_counts]).decode()
    night = base.execute(
        "INSERT INTO nights (path, size, changed, problem, started, kit, torch, whole, came, seconds, counts, same,"
        " source, state, reasons) VALUES (?, ?, ?, '', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            path, *stamp, head.started, head.kit, head.torch, run.complete, run.came, seconds, counts, same,
            source, run.conclusion.state, reasons,
        ),
    ).lastrowid  # fmt: skip
    _add_laws(base, night, run)
    _add_outcomes(base, night, run)


def _add_laws(base: sqlite3.Connection, night: int | None, run: Run) -> None:
    groups: dict[LawKey, list[CaseLine]] = {}
    for case in run.reported:
        groups.setdefault(law_of(case), []).append(case)
    rows = []
    for key, cases in groups.items():
        times = [case.seconds for case in cases if case.seconds and case.size]
        worst = max((case.error for case in cases if case.error), key=lambda error: error.relative, default=None)
        counts = msgspec.json.encode(Counter(case.outcome for case in cases)).decode()
        error = (worst.relative, worst.ulps) if worst else (None, None)
        rows.append((night, *key, counts, median(times) if times else None, *error))
    base.executemany("INSERT INTO laws VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)


def _add_outcomes(base: sqlite3.Connection, night: int | None, run: Run) -> None:
    """Add whether each case was red. Leave out cases that did not run to their end: nothing is known of them."""
    order = {ending: index for index, ending in enumerate(ENDINGS)}
    worst: dict[CaseKey, CaseLine] = {}
    for case in run.reported:
        key = case_key(case)
        if case.outcome in ("interrupted", "not-run"):
            continue
        if key not in worst or order[case.outcome] < order[worst[key].outcome]:
            worst[key] = case
    base.executemany("INSERT OR IGNORE INTO names (subject, contract, law, title) VALUES (?, ?, ?, ?)", worst)
    base.executemany(
        "INSERT INTO outcomes SELECT ?, name, ?, ? FROM names"
        " WHERE subject = ? AND contract = ? AND law = ? AND title = ?",
        [(night, case.outcome in RED, case.outcome, *key) for key, case in worst.items()],
    )
