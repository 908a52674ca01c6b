"""The filters ``--law`` and ``--optimizer``: what they choose, what they leave out, and what is wrong with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

import pytest
from everyrank.fixtures import optimizers
from everyrank.suites.case import Case
from everyrank.suites.contract import contract, contracts
from everyrank.suites.generate.options import GENERATE
from everyrank.suites.ledger import matches
from everyrank.suites.left_out import LEFT_OUT, LeftOut, Reason
from everyrank.suites.subject import Subject


@dataclass(frozen=True)
class Filters:
    """What ``--law`` and ``--optimizer`` ask for; None where an option was not given."""

    law: str | None
    optimizer: str | None

    @staticmethod
    def of(config: pytest.Config) -> Filters:
        return Filters(config.getoption("law"), config.getoption("optimizer"))

    def select(self, subject: Subject, cases: Iterable[Case]) -> Selection:
        """The cases that fit, and how many do not."""
        chosen: list[Case] = []
        left_out: Counter[Reason] = Counter()
        for case in cases:
            reason = self._reason(case)
            if reason is None:
                chosen.append(case)
            else:
                left_out[reason] += 1
        return Selection(subject, tuple(chosen), left_out)

    def _reason(self, case: Case) -> Reason | None:
        if self.law is not None and not matches(self.law, case.law.id):
            return Reason(f"--law {self.law}", "of other laws")
        if self.optimizer is not None and not _fits(self.optimizer, case.point.optimizer):
            kind = "of other optimizers" if case.point.optimizer else "of laws that name no optimizer"
            return Reason(f"--optimizer {self.optimizer}", kind)
        return None

    def problem(self, selections: Iterable[Selection]) -> str:
        """What is wrong with the filters, once all test files are imported: they may register optimizers."""
        if self.optimizer is not None and (unknown := _unknown_optimizer(self.optimizer)):
            return unknown
        selections = list(selections)
        if any(selection.cases for selection in selections) or not any(one.left_out for one in selections):
            return ""
        found = left_out(selections)
        return f"no case of {', '.join(found.without)} fits: {', '.join(found.by_filter())}"


@dataclass(frozen=True)
class Selection:
    """What the filters made of the cases of one subject."""

    subject: Subject
    cases: tuple[Case, ...]
    left_out: Mapping[Reason, int]


#: What was selected for each conformance test, by the node id of its function.
SELECTIONS: pytest.StashKey[dict[str, Selection]] = pytest.StashKey()


def left_out(selections: Iterable[Selection]) -> LeftOut:
    """What all subjects of a run miss."""
    counts: Counter[Reason] = Counter()
    chosen: Counter[tuple[str, str]] = Counter()  # another contract's subject may have the same name
    for selection in selections:
        counts.update(selection.left_out)
        chosen[selection.subject.contract, selection.subject.name] += len(selection.cases)
    return LeftOut(counts, tuple(name for (_, name), cases in chosen.items() if not cases))


def settle(config: pytest.Config, items: list[pytest.Item]) -> str:
    """After collection: note what the filters left out of what was asked for; returns what is wrong with them.

    Of a subject without a fitting case pytest makes one item, to skip it. It is removed: it would look like a test.
    """
    known = config.stash.get(SELECTIONS, {})
    asked = {_function(item) for item in items}  # other functions of a file are read even where one was named
    selections = [selection for function, selection in known.items() if function in asked]
    items[:] = [item for item in items if _function(item) not in known or known[_function(item)].cases]
    problem = Filters.of(config).problem(selections)
    if not problem:
        config.stash[LEFT_OUT] = left_out(selections)
    return problem


def _function(item: pytest.Item) -> str:
    """The node id of a test without its parameters."""
    name = getattr(item, "originalname", item.name)
    return f"{item.parent.nodeid}::{name}" if item.parent is not None else name


def check_law(law: str, generates: bool = False) -> None:
    """Refuse a law that no contract has, naming those that there are."""
    known = sorted({law for name in contracts() for law in contract(name).laws})
    known += [GENERATE] if generates else []
    if not any(matches(law, name) for name in known):
        families = sorted({f"{name.partition('.')[0]}.*" for name in known if "." in name})
        hint = _did_you_mean(law, [*families, *known])
        raise pytest.UsageError(f"--law: no law is called {law!r}.{hint} The laws are {', '.join(known)}")


def _fits(pattern: str, optimizer: str) -> bool:
    return matches(pattern.lower(), optimizer.lower())


def _unknown_optimizer(optimizer: str) -> str:
    names = [row.name for row in optimizers.rows()]
    if any(_fits(optimizer, name) for name in names):
        return ""
    hint = _did_you_mean(optimizer, names)
    return f"--optimizer: no row is called {optimizer!r}.{hint} There are {', '.join(names)}"


def _did_you_mean(given: str, names: Iterable[str]) -> str:
    """The closest names, whatever their case; nothing where none is close."""
    by_lower = {name.lower(): name for name in names}
    close = [repr(by_lower[name]) for name in get_close_matches(given.lower(), by_lower)]
    return f" Did you mean {' or '.join(close)}?" if close else ""
