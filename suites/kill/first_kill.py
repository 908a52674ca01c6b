"""In a sample of the matrix a law's first kill of a rogue is enough: no other case makes the pair more certain.

A law of crossings has many scripts, most of which have nothing to do with what a rogue breaks. ``killers.toml`` names
the script that killed each rogue when it was written: it is tried first. A name that is out of date costs time alone.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from everyrank.fixtures import rogues as all_rogues
from everyrank.model.toml import tomllib
from everyrank.suites.collect.usability import case_of, outcome_of
from everyrank.suites.engine.case import Case
from everyrank.suites.options import SHARED

#: Why a case was not tried.
ENOUGH = "a law has killed its rogue by another case; --others=all tries all"

#: The file that names them, by contract and rogue.
KILLERS = Path(all_rogues.__path__[0], "killers.toml")

#: By contract and rogue, the id of a case of crossings that killed it.
Killers = Mapping[str, Mapping[str, str]]

#: A contract, a rogue or a control of it, and one of its laws.
Pair = tuple[str, str, str]


class FirstKill:
    """Skips what a law has left for a rogue that it has killed. A pytest plugin of each controller."""

    def __init__(self, config: pytest.Config) -> None:
        shared = config.getoption(SHARED, None)  # each worker of pytest-xdist has a part of a pair's cases
        self._shared = Path(shared, "killed") if shared else None
        self._killed: set[Pair] = set()
        self._likely = {(*key, case) for key, case in _named(read())}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: not self._is_likely(case_of(item)))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        case = case_of(item)
        # What is named is tried in any case: so the run knows whether the name is out of date.
        if case is not None and not self._is_likely(case) and self._has_killed(_pair(case)):
            item.add_marker(pytest.mark.skip(reason=ENOUGH), append=False)
        return (yield)

    @pytest.hookimpl(trylast=True)
    def pytest_everyrank_result(self, item: pytest.Item, reports: list[pytest.TestReport], **_: Any) -> None:
        case = case_of(item)
        if case is not None and "fail" in map(outcome_of, reports):
            pair = _pair(case)
            self._killed.add(pair)
            if self._shared is not None:
                self._shared.mkdir(exist_ok=True)
                (self._shared / _name(pair)).touch()

    def _is_likely(self, case: Case | None) -> bool:
        return case is not None and (*case.subject_key, case.id) in self._likely

    def _has_killed(self, pair: Pair) -> bool:
        return pair in self._killed or (self._shared is not None and (self._shared / _name(pair)).exists())


def _pair(case: Case) -> Pair:
    return (*case.subject_key, case.law.id)


def _name(pair: Pair) -> str:
    return " ".join(pair)


# --- the script that is tried first ------------------------------------------------------------------


def read() -> Killers:
    killers: Killers = tomllib.loads(KILLERS.read_text(encoding="utf-8"))
    return killers


def updated(kills: Mapping[tuple[str, str], Collection[str]], rogues: Mapping[str, Collection[str]]) -> Killers:
    """Return the file's contents after a run, of which ``kills`` has the ids of the cases that killed each rogue.

    ``rogues`` has the names of all rogues of its contracts: those that are not there any more are left out.
    """
    names = {key: case for key, case in _named(read()) if key[1] in rogues.get(key[0], (key[1],))}
    names |= {key: min(cases) for key, cases in kills.items() if names.get(key) not in cases}
    killers: dict[str, dict[str, str]] = {}
    for (contract, rogue), case in sorted(names.items()):
        killers.setdefault(contract, {})[rogue] = case
    return killers


def write(killers: Killers) -> None:
    lines = ["# `everyrank kill-matrix --write-killers` writes this: the case of crossings that is tried first."]
    for contract, rogues in killers.items():
        lines += ["", f"[{contract}]", *(f'{rogue} = "{case}"' for rogue, case in rogues.items())]
    KILLERS.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _named(killers: Killers) -> Iterable[tuple[tuple[str, str], str]]:
    return (((contract, rogue), case) for contract, rogues in killers.items() for rogue, case in rogues.items())
