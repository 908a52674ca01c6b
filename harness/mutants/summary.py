"""What ``--mutate`` prints at the end of a run: what no test noticed, by file and line, and the counts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from everyrank.model.counts import count
from everyrank.model.mutation import ATTRIBUTE, MutantPart, MutationPart

_BY = {"fail": "by an assertion or an error", "timeout": "by a hang", "crash": "by a crash", "error": "by an error"}


class Summary:
    """A pytest plugin of the process that prints: it gathers what became of the mutants of all tests."""

    def __init__(self, budget: float) -> None:
        self._budget = budget
        self._found: dict[str, MutationPart] = {}

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: Any) -> None:
        text = getattr(report, ATTRIBUTE, None)
        if text is not None:
            self._found[report.nodeid] = msgspec.json.decode(text, type=MutationPart)

    @pytest.hookimpl
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._found:
            terminalreporter.section("everyrank: mutants")
            for line in lines(self._found, self._budget):
                terminalreporter.write_line(line)


def lines(found: dict[str, MutationPart], budget: float) -> list[str]:
    """Return the lines of the summary."""
    lines = []
    for nodeid, part in found.items():
        about = [*part.remarks, *survivors(part), *besides(part)]
        if about:
            lines += [nodeid, *(f"  {line}" for line in about)]
    return [*lines, *_totals(list(found.values()), budget)]


def survivors(part: MutationPart) -> list[str]:
    """Return a sentence on each change that a test does not notice."""
    return [f"nothing notices if {mutant.text}" for mutant in _first(part, "survived")]


def besides(part: MutationPart) -> list[str]:
    """Return a sentence on each change that made no difference, or could not be judged."""
    whole = {(mutant.name, mutant.location) for mutant in part.mutants if mutant.outcome != "redundant"}
    alone = dict.fromkeys((m.name, m.location) for m in part.mutants if (m.name, m.location) not in whole and m.name)
    texts = [f"redundant: no change of the {name} at {location} made a difference" for name, location in alone]
    for mutant in _first(part, "unstable"):
        texts.append(f"unstable: the test failed if {mutant.text}, which made no difference: {mutant.message}")
    for mutant in _first(part, "not-landed"):
        texts.append(f"not tried: {mutant.text}: {mutant.message or 'the changed test did not make this call'}")
    return texts


def below_floor(part: MutationPart) -> str:
    """Return why a test is below its floor; "" if it is not."""
    if part.noticed >= part.floor:
        return ""
    tried = part.count("killed") + part.count("survived")
    headline = f"the test notices {part.count('killed')} of {tried} changes of its collectives, below its floor of"
    return "\n".join([f"{headline} {part.floor:g}", *survivors(part)])


def _first(part: MutationPart, outcome: str) -> Iterable[MutantPart]:
    """Return the mutants with this outcome, one for each way at each line."""
    found: dict[tuple[str, str, str], MutantPart] = {}
    for mutant in part.mutants:
        if mutant.outcome == outcome:
            found.setdefault((mutant.location, mutant.name, mutant.way), mutant)
    return sorted(found.values(), key=lambda mutant: (mutant.location.rpartition(":")[0], _line(mutant)))


def _line(mutant: MutantPart) -> int:
    number = mutant.location.rpartition(":")[2]
    return int(number) if number.isdigit() else 0


def _totals(parts: list[MutationPart], budget: float) -> list[str]:
    by: dict[str, int] = defaultdict(int)
    for part in parts:
        for mutant in part.mutants:
            if mutant.outcome == "killed":
                by[mutant.by] += 1
    counts = {name: sum(part.count(name) for part in parts) for name in ("killed", "survived", "redundant")}
    others = {name: sum(part.count(name) for part in parts) for name in ("unstable", "not-landed")}
    killed = ", ".join(f"{number} {_BY.get(name, name)}" for name, number in by.items())
    ran, possible = sum(len(part.mutants) for part in parts), sum(part.possible for part in parts)
    text = (
        f"{count(ran, 'mutant')} of {count(sum(part.calls for part in parts), 'collective')} in "
        f"{count(len(parts), 'test')}: {counts['killed']} killed{f' ({killed})' if killed else ''}, "
        f"{counts['survived']} survived, {counts['redundant']} made no difference"
    )
    text += "".join(f", {number} {name.replace('-', ' ')}" for name, number in others.items() if number)
    seconds = sum(part.seconds for part in parts)
    seed = parts[0].seed
    sample = (
        f"all {possible}" if ran == possible else f"a sample of {ran} of {possible}, drawn by --mutate-seed={seed}"
    )
    return [text, f"{sample}; {seconds:.1f} s of --mutate-budget={budget:g}s"]
