"""How much of what crossings can ask was asked of each subject, and was green: for the end of a run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from everyrank.model.counts import count
from everyrank.suites.errors import CROSSED, DeclarationError

if TYPE_CHECKING:
    from everyrank.suites.moves.coverage import Covered

#: The name by which a worker of pytest-xdist sends what its crossings have covered.
_OUTPUT = "everyrank_crossed"

#: What is counted, as a person reads it.
_TEXTS = {"pairs": "pairs of moves in a row", "triples": "triples in their order", "flows": "flows of state"}


class Crossed:
    """A pytest plugin of each process that runs tests, and of the one that prints.

    A worker of pytest-xdist has imported the contracts, so it counts; its controller puts the counts together.
    """

    def __init__(self) -> None:
        self._played: dict[tuple[str, str], list[str]] = defaultdict(list)
        self._covered: dict[tuple[str, str], Covered] = {}
        self._asked: dict[str, dict[str, int]] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        properties = dict(getattr(report, "user_properties", ()))
        of_worker = hasattr(report, "node")  # pytest-xdist's controller hears it, too
        # A test that calls a law by itself is no case: its report names no contract.
        if report.when == "call" and {CROSSED, "contract", "subject"} <= properties.keys() and not of_worker:
            self._played[properties["contract"], properties["subject"]].append(properties[CROSSED])

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._played:
            self._count()
        if (output := getattr(session.config, "workeroutput", None)) is not None and self._covered:
            covered = [(*subject, vars(covered)) for subject, covered in self._covered.items()]
            output[_OUTPUT] = self._asked, covered

    def _count(self) -> None:
        from everyrank.suites.engine.contract import contract
        from everyrank.suites.moves.coverage import asked, covered

        for (name, subject), texts in self._played.items():
            try:
                player = contract(name).part("player")
            except DeclarationError:  # it is no installed contract, but an object of the tests
                continue
            self._asked[name] = asked(player)
            self._add(name, subject, covered(player, texts))

    def _add(self, contract: str, subject: str, covered: Covered) -> None:
        known = self._covered.get((contract, subject))
        self._covered[contract, subject] = covered if known is None else known | covered

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take over what a worker of pytest-xdist has counted."""
        asked, covered = getattr(node, "workeroutput", {}).get(_OUTPUT, ({}, []))
        if covered:
            from everyrank.suites.moves.coverage import Covered

            self._asked |= asked
            for contract, subject, counted in covered:
                self._add(contract, subject, Covered(**counted))

    @pytest.hookimpl(optionalhook=True)
    def pytest_everyrank_ended(self, config: pytest.Config, end: dict[str, Any]) -> None:
        parts = [
            {"contract": contract, "subject": subject, "scripts": covered.scripts}
            | {name: [number, self._asked[contract][name]] for name, number in covered.counts().items()}
            for (contract, subject), covered in self._covered.items()
        ]
        if parts:
            end["crossings"] = parts

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for line in self._lines():
            terminalreporter.write_line(line)

    def _lines(self) -> Iterator[str]:
        """Yield a line for each contract: what a green of its crossings means."""
        for contract, asked in self._asked.items():
            found = [covered for (name, _), covered in self._covered.items() if name == contract]
            shares = {
                name: sorted(100 * each.counts()[name] // (asked[name] or 1) for each in found) for name in asked
            }
            pairs, *others = [f"{_range(shares[name])} % of {text}" for name, text in _TEXTS.items()]
            start = f"conformance: crossings of {contract}, {count(len(found), 'subject')}"
            yield f"{start}: {pairs} that --profile=full has, {', '.join(others)}"


def _range(shares: list[int]) -> str:
    return f"{shares[0]}" if shares[0] == shares[-1] else f"{shares[0]} to {shares[-1]}"
