"""``everyrank adopt-report``: lists which tests ``--adopt`` would run on everyrank's ranks, and why it would not run
the others. Runs no test."""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import re
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from everyrank.adopt.missing import Missing
from everyrank.adopt.plugin import find
from everyrank.adopt.recognise import CONTINUOUS, Adopted, Finding, NotAdopted, Skipped, expects_death
from everyrank.model.counts import count

_USAGE = """usage: everyrank adopt-report [PATH ...] [pytest's options]

Lists for every test that pytest collects whether --adopt would run it on everyrank's ranks. Runs no test.
With -v, prints one line for each test."""


#: The command has imported the plugin that pytest would rewrite.
_QUIET = ("-W", "ignore::pytest.PytestAssertRewriteWarning")


@dataclass(frozen=True)
class AdoptLine:
    """The line for one test, or for all tests of a class that have it in common."""

    status: str
    location: str
    reason: str


class _Report(Missing):
    def __init__(self) -> None:
        self.lines: list[tuple[AdoptLine, str]] = []

    @pytest.hookimpl
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            cls = getattr(item, "cls", None)
            finding = find(item)
            status, reason = _describe(finding, cls)
            if status == "other" and _may_run_torchrun(item):
                status, reason = "watched", "it names torchrun, whose ranks would be watched"
            location = item.nodeid.rpartition("::")[0] or str(item.path)
            self.lines.append((AdoptLine(status, location, reason), item.nodeid))


def main(arguments: list[str]) -> int:
    """Run the command. Return 0, unless pytest could not collect all tests."""
    if {"-h", "--help"} & set(arguments):
        print(_USAGE)
        return 0
    verbose = any(argument in ("-v", "--verbose") for argument in arguments)
    report, output = _Report(), io.StringIO()
    with contextlib.redirect_stdout(output):
        code = pytest.main(["--collect-only", "-p", "no:randomly", *_QUIET, *arguments], plugins=[report])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        print(output.getvalue(), file=sys.stderr)
    print("\n".join(render_report(report.lines, verbose)))
    return 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else int(code)


def render_report(lines: list[tuple[AdoptLine, str]], verbose: bool) -> Iterator[str]:
    """Yield the report: by class or, if verbose, by test; then the totals."""
    if verbose:
        for line, nodeid in lines:
            yield f"{line.status:8} {nodeid}: {line.reason}"
    else:
        for line, number in Counter(line for line, _ in lines).items():
            yield f"{line.status:8} {line.location}: {count(number, 'test')}; {line.reason}"
    counts = Counter(line.status for line, _ in lines)
    totals = [f"{counts[status]} {text}" for status, text in _STATUS_TEXTS.items() if counts[status]]
    yield f"{count(len(lines), 'test')}: {', '.join(totals)}" if lines else "no tests"


_STATUS_TEXTS = {
    "adopted": "would run on everyrank's ranks",
    "skipped": "would be skipped",
    "left": "would run as they do without --adopt",
    "watched": "would run as they do without --adopt, and the ranks of their torchrun would be watched",
    "other": "not written on torch.testing._internal",
}
_TORCHRUN = re.compile(r"\btorchrun\b|torch\.distributed\.(run|launch)\b")


def _may_run_torchrun(item: pytest.Item) -> bool:
    """Return whether a test names torchrun, itself or by what its file defines: then it may run a script by it."""
    function: Any = getattr(item, "function", None)
    module: Any = inspect.getmodule(function)
    with contextlib.suppress(OSError, TypeError, SyntaxError):
        if _TORCHRUN.search(inspect.getsource(function)):
            return True
        names = set(function.__code__.co_names)
        defined = [node for node in ast.parse(inspect.getsource(module)).body if _defined(node) & names]
        return any(_TORCHRUN.search(ast.unparse(node)) for node in defined)
    return False


def _defined(node: ast.stmt) -> set[str]:
    """Return the names that a statement of a module defines."""
    if isinstance(node, ast.FunctionDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else []
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _describe(finding: Finding, cls: type | None) -> tuple[str, str]:
    if isinstance(finding, Adopted):
        stays = (
            "one world for all tests of the class" if finding.kind == CONTINUOUS else "new processes for each test"
        )
        dies = "; a test that expects a process to die fails here" if expects_death(cls) else ""
        limit = "" if finding.timeout is None else f", {finding.timeout:g} s"
        return "adopted", f"a world of {finding.size}, {stays}{limit}{dies}"
    if isinstance(finding, Skipped):
        return "skipped", finding.reason
    assert isinstance(finding, NotAdopted)
    return ("left" if finding.uses_torch else "other"), finding.reason
