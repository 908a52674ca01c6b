"""A case: one law, at one point, on one subject. It ends in exactly one outcome."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import warnings
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
import torch
from everyrank.fixtures.optimizers import NameTaken
from everyrank.model.outcome import HOLDS
from everyrank.rank.context import BROKEN, current_rank, notes
from everyrank.rank.world import current_world
from everyrank.suites.engine.capability import claimed_capabilities, declarable, lacks, missing
from everyrank.suites.engine.contract import Contract, Law, Point, contract
from everyrank.suites.engine.failure import failure, fault, unusable
from everyrank.suites.engine.judge import Outcome, judge
from everyrank.suites.engine.ledger import Entry
from everyrank.suites.engine.ledgers import Ledgers, builds_on_others, ledgers, offered
from everyrank.suites.engine.subject import Lack, Subject
from everyrank.suites.errors import (
    MISSING,
    STATED,
    BrokenAdapter,
    DeclarationError,
    Deviation,
    LedgerError,
    NotApplicable,
    RanksDiverged,
    declaration,
    undeclared,
)


@dataclass(frozen=True)
class Case:
    """One law, at one point, on one subject."""

    subject: Subject
    contract: Contract
    law: Law
    point: Point
    entry: Entry | None = None
    lack: Lack | None = None
    ledger: Path | None = None  # the subject's file, whether or not an entry matches this case
    needs: tuple[str, ...] = ()
    """The capabilities that it needs and that the subject claims, since it declares nothing of this case."""
    claimed: tuple[str, ...] = ()
    """For a case that needs a capability: all that the subject claims. They are asked for at once."""
    claims_plainest: bool = True
    """Whether the plainest use is claimed: no entry of the ledger and no lack matches SGD without arguments."""

    @property
    def short_id(self) -> str:
        label = f"{self.point.label}-" if self.point.label else ""
        return f"{self.law.id}[{label}ws{self.point.size}]"

    @property
    def id(self) -> str:
        return f"{self.contract.name}/{self.short_id}"

    @property
    def fixtures(self) -> tuple[str, ...]:
        """The rank fixtures that this case needs."""
        declared = (self.point.fixtures, self.law.fixtures)
        return next((names for names in declared if names is not None), self.contract.fixtures)

    def __repr__(self) -> str:
        return f"<{self.subject.name} {self.id}>"

    @property
    def subject_key(self) -> tuple[str, str]:
        """The contract and the subject: subjects of different contracts may have the same name."""
        return self.contract.name, self.subject.name

    @property
    def prepared(self) -> bool:
        """Whether the plainest use is tried before this case."""
        return self._able and self.claims_plainest and self.contract.plainest is not None

    @property
    def _able(self) -> bool:
        """Whether the subject can be used in its world, besides by its law."""
        return set(self.contract.fixtures) <= set(self.fixtures) and not self.point.not_applicable

    def prepare(self) -> None:
        """Before the first case of a subject at this world size, try whether the subject can be used at all."""
        if not self.prepared or self.subject_key in _used:
            return
        _used.add(self.subject_key)
        key = hashlib.sha256(repr((*self.subject_key, self.point.size)).encode()).hexdigest()
        mark = Path(current_rank().run_folder, f"usable-{key}")
        # Another rank may not see the file, or see it at another time: rank 0 decides.
        if (answers := current_rank().gather("the plainest use", str(mark.exists()))) and answers[0] == str(True):
            return
        problem = None
        try:
            with _restoring_state(), self.contract.arena(self.subject, self.point) as arena:
                if arena is not None:  # if it is None, another rank drives
                    self.contract.part("plainest")(arena)
            if current_world().rank == 0:  # all went well
                mark.touch()
        except BrokenAdapter as error:
            notes()[BROKEN] = fault(error)
            problem = unusable(self.subject.name, self.contract.name, error)
        except Deviation:
            pass  # the laws will find it
        if problem is not None:
            raise problem

    def run(self, may_fail: bool = False) -> None:
        """Run on this rank, and end with the pytest outcome that stands for the case's outcome.

        If the case may fail, a deviation is an xfail: it says nothing against the world, which may go on.
        """
        __tracebackhide__ = True
        if self.needs and not may_fail:
            self._ask()
        outcome = self.outcome(explains=not may_fail)
        verdict, text = self.judged(outcome)
        expected = verdict == "known" or (may_fail and verdict == "fail")
        rank = current_rank()
        present = dict(rank.item.user_properties)
        rank.item.user_properties += [(name, value) for name, value in properties(self) if name not in present]
        rank.item.user_properties.append(("outcome", verdict))
        failed = None
        if verdict in ("fail", "error") and (hint := self._declarable(outcome)):
            text = f"{text}\n  {hint}"
        if outcome.explanation:
            text = f"{text}\n\n{outcome.explanation}"
        if verdict not in PASSED and not expected:
            failed = failure(verdict, f"{self.subject.name} {self.id}", self.law.text, text, outcome.error)
        if text:
            rank.notes["message"] = failed.news if failed is not None else text.splitlines()[0]
        if outcome.bad:
            rank.notes["deviation"] = outcome.seen.as_note()
        # Exemplars and rogues have no ledger.
        if failed is not None and self.entry is None and not (self.subject.exemplar or self.subject.sabotage):
            rank.notes[STATED] = self._stated_by(outcome)
        if expected:
            if outcome.kind == "fail":
                rank.keep_if_xfailed()
            # pytest.xfail() would have pytest look for the lines of a traceback, on each rank, that nobody reads.
            raise pytest.xfail.Exception(text, pytrace=False)
        if verdict == "not-applicable":
            pytest.skip(text)
        if failed is not None:
            raise failed from outcome.error

    def _ask(self) -> None:
        """Fail, with one sentence about all that is missing, if the subject lacks what this case needs."""
        __tracebackhide__ = True
        lacking = missing(self.contract, self.subject, self.point, self.claimed if self._able else ())
        if lacking.keys() & set(self.needs):
            notes()[MISSING] = lacking
            rank = current_rank()
            rank.item.user_properties += [*properties(self), ("outcome", "error")]
            width = max(map(len, lacking))
            errors = [f"  {name:{width}}  {error}" for name, error in sorted(lacking.items())]
            pytest.fail("\n".join([undeclared(self.subject.name, lacking), *errors]), pytrace=False)

    def outcome(self, explains: bool = False) -> Outcome:
        """Check the law on this rank; return the outcome before ledger and lacks are applied.

        ``explains``: if the case fails, the law is to say more about it.
        """
        __tracebackhide__ = True
        explanation: list[str] = []
        if self.point.not_applicable:
            return Outcome("not-applicable", self.point.not_applicable)
        try:
            with self.contract.arena(self.subject, self.point) as arena:
                if arena is not None or self.law.crosses:
                    self._check(arena, explanation if explains else None)
            if notes().get("approximate"):
                return Outcome("approximate", getattr(self.subject.bound, "reason", ""))
        except NotApplicable as error:
            return Outcome("not-applicable", str(error), error)
        except Deviation as error:
            return Outcome("fail", str(error), error, *explanation)
        except BrokenAdapter as error:
            notes()[BROKEN] = fault(error)
            return Outcome("error", f"{fault(error)}: {error}", error)
        except Exception as error:
            return Outcome("error", f"{type(error).__name__}: {error}", error)
        return Outcome("pass")

    def _check(self, arena: Any, explanation: list[str] | None) -> None:
        """Check the law in its arena. If it fails, and the ledger does not say so, add what it says about that."""
        __tracebackhide__ = True
        try:
            self.law.check(self.subject if self.law.crosses else arena, self.point)
        except RanksDiverged:
            raise  # nothing can be tried any more
        except Deviation as error:
            if self.law.explain is not None and explanation is not None:
                verdict, _ = self.judged(Outcome("fail", str(error), error))
                with contextlib.suppress(RanksDiverged):
                    explanation += [self.law.explain(self.subject, self.point)] if verdict == "fail" else []
            raise

    def judged(self, outcome: Outcome) -> tuple[str, str]:
        """Return the verdict and its text, given what the subject declares."""
        declared = self.lack is not None or self.entry is not None
        return judge(outcome, self.entry, self.lack, declared and outcome.well and self._others_failed())

    def _stated_by(self, outcome: Outcome) -> list[str]:
        """Return the ledgers under which the subject would be known to end so, if it built on them.

        A subject that names one already builds on that alone.
        """
        if builds_on_others(self.subject, self.contract):
            return []
        entries = {ledger.file: ledger.entry(self.short_id) for ledger in offered(self.contract)}
        return [name for name, entry in entries.items() if judge(outcome, entry, self.lack, False)[0] == "known"]

    def _declarable(self, outcome: Outcome) -> str:
        """Return what the subject would write if it lacks what this case needs; an empty text if it deviates."""
        if self.lack is not None or self.entry is not None:
            return ""
        raised = outcome.seen.raised
        lacking = declarable(self.contract, self.short_id, self.law.crosses, outcome.text, raised)
        return " ".join(
            f"If it is to do without that, {declaration([each.name])} says so: {each.text}." for each in lacking
        )

    def _others_failed(self) -> bool:
        """Return whether another rank has ended this case otherwise."""
        return current_world().somebody_left()


#: Verdicts that are no failure.
PASSED = HOLDS | {"unsupported", "not-applicable"}

#: The subjects whose plainest use this process has tried.
_used: set[tuple[str, str]] = set()


def cases(subject: Subject, folder: Path | None = None) -> list[Case]:
    """Return all cases of a subject. Raise if its declaration or its ledger is wrong, with all that is wrong.

    ``folder`` is the one in which a relative path of a ledger is looked up.
    """
    chosen = contract(subject.contract)
    try:
        plain = [Case(subject, chosen, law, point) for law, point in chosen.points(subject.sizes, subject.optimizers)]
    except NameTaken as error:
        raise DeclarationError(f"{subject.name}: {error}") from error
    ids = [case.short_id for case in plain]
    if len(set(ids)) < len(ids):
        twice = next(case_id for case_id in ids if ids.count(case_id) > 1)
        raise DeclarationError(f"{chosen.name}: the case {twice} exists twice")
    named, entries, lacking = _declared(subject, chosen, folder, ids)
    free = {id for id in ids if id not in lacking and (id not in entries or entries[id].shared)}
    claimed = claimed_capabilities(chosen, subject, ids, free, free & entries.keys())
    table = [
        Case(subject, chosen, case.law, case.point, entries.get(case_id), lacking.get(case_id), named.file)
        for case, case_id in zip(plain, ids, strict=True)
    ]
    for entry in named.own.entries:
        if all(case.lack for case in table if case.entry is entry):
            raise LedgerError(f"{named.own.file}: the entry {entry.case!r} matches only cases that the subject lacks")
    if any(case.point.plainest and (case.entry or case.lack) for case in table):
        table = [replace(case, claims_plainest=False) for case in table]
    return [_needing(case, claimed) for case in _fitted(table)]


def _fitted(table: list[Case]) -> list[Case]:
    """Return the cases, of which some depend on what the subject declares."""
    fits = {law.id: law.fit(table) for law in table[0].contract.laws.values() if law.fit} if table else {}
    return [
        replace(case, point=fits[case.law.id](case.point)) if case.law.id in fits else case for case in table
    ]  # fmt: skip


def _needing(case: Case, claimed: Mapping[str, Collection[str]]) -> Case:
    """Return the case with the capabilities that it needs, if the subject claims them and may be asked."""
    subject = case.subject
    if subject.exemplar or subject.sabotage:
        return case  # it has all of them, or lacks what its rogue takes away
    needs = tuple(name for name, cases in claimed.items() if case.law.crosses or case.short_id in cases)
    return replace(case, needs=needs, claimed=tuple(claimed)) if needs else case


@contextlib.contextmanager
def _restoring_state() -> Iterator[None]:
    """Restore what the plainest use may set: a law that looks for changes does not see that it is set again."""
    dtype = torch.get_default_dtype()
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_default_dtype(dtype)


def _mistakes(subject: Subject, chosen: Contract) -> Iterator[str]:
    """Yield what the subject claims and the contract does not have: a world size without a case, or a choice."""
    known = {point.claimed_size for _, point in chosen.points()}
    strange = sorted(set(subject.sizes or ()) - known)
    has = f"it has cases at {', '.join(map(str, sorted(known)))}"
    if strange:
        yield f"{subject.name}: {chosen.name} has no case at world size {', '.join(map(str, strange))}: {has}"
    if subject.sizes == ():
        yield f"{subject.name}: sizes names no world size of {chosen.name}: {has}; leave sizes out for all of them"
    left = f"it leaves {', '.join(chosen.choices)}" if chosen.choices else "it leaves none"
    for choice in sorted(subject.declares - set(chosen.choices)):
        yield f"{subject.name}: {chosen.name} leaves no choice called {choice!r}: {left}"


def _declared(
    subject: Subject, chosen: Contract, folder: Path | None, ids: Collection[str]
) -> tuple[Ledgers, dict[str, Entry], dict[str, Lack]]:
    """Return the ledgers, and the entry and the lack of each case. Raise with all that is wrong with them."""
    wrong: list[Exception] = [DeclarationError(mistake) for mistake in _mistakes(subject, chosen)]
    named, entries, lacking = Ledgers(), dict[str, Entry](), dict[str, Lack]()
    try:
        named = ledgers(subject, chosen, folder)
        entries = named.assign(ids) if ids else {}
    except (DeclarationError, LedgerError) as error:
        wrong.append(error)
    try:
        lacking = lacks(subject, chosen, ids, named.own.lacks) if ids else {}
    except DeclarationError as error:
        wrong.append(error)
    if len(wrong) == 1:
        raise wrong[0]
    if wrong:
        raise DeclarationError("\n".join(map(str, wrong)))
    return named, entries, lacking


def properties(case: Case) -> list[tuple[str, object]]:
    """Return the user properties that describe a case in its reports, whatever its outcome."""
    pairs: list[tuple[str, object]] = [
        ("subject", case.subject.name),
        ("contract", case.contract.name),
        ("law", case.law.id),
        ("case", case.id),
        ("optimizer", case.point.optimizer),
    ]
    if case.subject.package:
        pairs.append(("package", _with_version(case.subject.package)))
    if case.ledger is not None:
        pairs.append(("ledger-file", os.path.relpath(case.ledger)))
    if case.entry is not None:
        pairs += [("ledger-shared", case.entry.shared)] if case.entry.shared else []
        pairs += [(f"ledger-{name}", getattr(case.entry, name)) for name in ("kind", "issue", "note", "link")]
        pairs.append(("ledger-expects", case.entry.expects if case.entry.states else ""))
    if case.lack is not None:
        pairs.append(("lack", case.lack.reason))
    return pairs


@functools.cache
def _with_version(package: str) -> str:
    with contextlib.suppress(PackageNotFoundError):
        return f"{package} {version(package)}"
    return package
