"""``everyrank adopt-report``: which tests ``--adopt`` would run on our ranks, which not, and why. Runs none."""

from __future__ import annotations

import contextlib
import io
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from everyrank.adopt.recognise import CONTINUOUS, Adopted, Finding, Left, Skipped, expects_death, recognise

_USAGE = """usage: everyrank adopt-report [PATH ...] [pytest's options]

Tells of every test that pytest collects there whether --adopt would run it on everyrank's ranks. Runs no test.
With -v, one line for each test."""


@dataclass(frozen=True)
class Line:
    """What is told of one test, or of all tests of a class that have this in common."""

    word: str
    where: str
    why: str


class _Report:
    def __init__(self) -> None:
        self.lines: list[tuple[Line, str]] = []

    @pytest.hookimpl
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            cls = getattr(item, "cls", None)
            found = recognise(cls, item.name)
            word, why = _words(found, cls)
            where = item.nodeid.rpartition("::")[0] or str(item.path)
            self.lines.append((Line(word, where, why), item.nodeid))


def main(arguments: list[str]) -> int:
    """The command. 0, unless something could not be collected."""
    if {"-h", "--help"} & set(arguments):
        print(_USAGE)
        return 0
    each = any(one in ("-v", "--verbose") for one in arguments)
    report, said = _Report(), io.StringIO()
    with contextlib.redirect_stdout(said):
        code = pytest.main(["--collect-only", "-p", "no:randomly", *arguments], plugins=[report])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        print(said.getvalue(), file=sys.stderr)
    print("\n".join(told(report.lines, each)))
    return 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else int(code)


def told(lines: list[tuple[Line, str]], each: bool) -> Iterator[str]:
    """The report: by class, or by test; then the sum."""
    if each:
        for line, nodeid in lines:
            yield f"{line.word:8} {nodeid}: {line.why}"
    else:
        for line, count in Counter(line for line, _ in lines).items():
            yield f"{line.word:8} {line.where}: {count} test{'s' if count > 1 else ''}; {line.why}"
    words = Counter(line.word for line, _ in lines)
    sums = [f"{words[word]} {text}" for word, text in _SUMS.items() if words[word]]
    yield f"{len(lines)} tests: {', '.join(sums)}" if lines else "no tests"


_SUMS = {
    "adopted": "would run on everyrank's ranks",
    "skipped": "would be skipped",
    "left": "would run as they do without --adopt",
    "other": "not written on torch.testing._internal",
}


def _words(found: Finding, cls: type | None) -> tuple[str, str]:
    if isinstance(found, Adopted):
        stays = "one world for all tests of the class" if found.kind == CONTINUOUS else "new processes for each test"
        dies = "; a test that expects a process to die fails here" if expects_death(cls) else ""
        return "adopted", f"a world of {found.size}, {stays}, {found.timeout:g} s{dies}"
    if isinstance(found, Skipped):
        return "skipped", found.why
    assert isinstance(found, Left)
    return ("left" if found.theirs else "other"), found.why
