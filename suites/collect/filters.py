"""The filters ``--law``, ``--optimizer`` and ``--profile``.

They select cases, count the others, and refuse wrong filters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import pytest
from everyrank.fixtures import optimizers
from everyrank.model.ledger import matches
from everyrank.suites.collect.left_out import FilterReason, Selection, left_out
from everyrank.suites.collect.profile import FULL
from everyrank.suites.collect.rotation import in_profile
from everyrank.suites.collect.stash import LEFT_OUT, SELECTIONS
from everyrank.suites.engine.case import Case
from everyrank.suites.engine.contract import Contract, contract, contracts
from everyrank.suites.engine.subject import Subject
from everyrank.suites.errors import DeclarationError
from everyrank.suites.options import GENERATE, PLAN


@dataclass(frozen=True)
class Filters:
    """The values of ``--law`` and ``--optimizer``, None if an option was not given, and of ``--profile``."""

    law: str | None
    optimizer: str | None
    generates: bool = False
    """Whether there are cases of the law of generated sequences."""
    profile: str = FULL
    named: str = ""
    """The arguments of the run: a case that is named there runs, whatever the profile."""

    @staticmethod
    def from_config(config: pytest.Config) -> Filters:
        option = config.getoption
        named = "\n".join([*config.args, option("keyword", "")])
        return Filters(option("law"), option("optimizer"), PLAN in config.stash, option("conformance_profile"), named)

    def select(self, subject: Subject, cases: Sequence[Case]) -> Selection:
        """Return the cases that fit, and the number of those that do not."""
        chosen: list[Case] = []
        others: Counter[FilterReason] = Counter()
        chosen_ids = in_profile(self.profile, cases)
        for case in cases:
            reason = self._reason(case)
            if reason is None and case.id not in chosen_ids and case.id not in self.named:
                reason = FilterReason(f"--profile={self.profile}", "that --profile=full runs")
            if reason is None:
                chosen.append(case)
            else:
                others[reason] += 1
        return Selection(subject, tuple(chosen), others)

    def _reason(self, case: Case) -> FilterReason | None:
        if self.law is not None and not matches(self.law, case.law.id):
            return FilterReason(f"--law {self.law}", "of other laws")
        if self.optimizer is not None and not _fits(self.optimizer, case.point.optimizer):
            kind = "of other optimizers" if case.point.optimizer else "of laws that name no optimizer"
            return FilterReason(f"--optimizer {self.optimizer}", kind)
        return None

    def problem(self, selections: Iterable[Selection]) -> str:
        """Return what is wrong with the filters. Test files must be imported: they may register optimizers."""
        if self.optimizer is not None and (unknown := _unknown_optimizer(self.optimizer)):
            return unknown
        selections = list(selections)
        if any(selection.cases for selection in selections):
            return ""
        if self.law is not None and (unknown := self._unknown_law({each.subject.contract for each in selections})):
            return unknown
        if not any(selection.left_out for selection in selections):
            return ""
        without_cases = left_out(selections)
        return f"no case of {', '.join(without_cases.without)} fits: {', '.join(without_cases.by_filter())}"

    def _unknown_law(self, used: Iterable[str | Contract]) -> str:
        """Return what is wrong with a law that none of the used and of the installed contracts has."""
        assert self.law is not None
        try:
            known = sorted({law for given in (*contracts(), *used) for law in contract(given).laws})
        except DeclarationError as error:
            return f"--law: {error}"
        known += [GENERATE] if self.generates else []
        if any(matches(self.law, name) for name in known):
            return ""
        families = sorted({f"{name.partition('.')[0]}.*" for name in known if "." in name})
        hint = _did_you_mean(self.law, [*families, *known])
        return f"--law: no law is called {self.law!r}.{hint} The laws are {', '.join(known)}"


def settle(config: pytest.Config, items: list[pytest.Item]) -> str:
    """After collection, note what the filters left out of the requested tests; return what is wrong with the filters.

    For a test without a fitting case pytest makes one skipped item. It is removed: it would look like a test.
    """
    known = config.stash.get(SELECTIONS, {})
    # pytest collects all functions of a file, even if one of them was named.
    requested = {_function(item) for item in items}
    selections = [selection for function in known if function in requested for selection in known[function]]
    without = {function for function, found in known.items() if not any(selection.cases for selection in found)}
    items[:] = [item for item in items if _function(item) not in without]
    problem = Filters.from_config(config).problem(selections)
    if not problem:
        config.stash[LEFT_OUT] = left_out(selections)
    return problem


def _function(item: pytest.Item) -> str:
    """Return the node id of a test without its parameters."""
    name = getattr(item, "originalname", item.name)
    return f"{item.parent.nodeid}::{name}" if item.parent is not None else name


def _fits(pattern: str, optimizer: str) -> bool:
    return matches(pattern.lower(), optimizer.lower())


def _unknown_optimizer(optimizer: str) -> str:
    names = [row.name for row in optimizers.all_rows()]
    if any(_fits(optimizer, name) for name in names):
        return ""
    hint = _did_you_mean(optimizer, names)
    return f"--optimizer: no row is called {optimizer!r}.{hint} There are {', '.join(names)}"


def _did_you_mean(given: str, names: Iterable[str]) -> str:
    """Return a hint with the closest names, whatever their case, or an empty text."""
    by_lower = {name.lower(): name for name in names}
    close = [repr(by_lower[name]) for name in get_close_matches(given.lower(), by_lower)]
    return f" Did you mean {' or '.join(close)}?" if close else ""
