"""A subject may build on the ledger of another: an entry excuses what deviates as it states, and asks for nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from everyrank.reports.ledger.accept import accept
from everyrank.reports.runfile.model import LedgerPart
from everyrank.reports.runfile.read import read as read_run
from everyrank.suites import Lack, Subject
from everyrank.suites.collect.outcomes import Outcomes
from everyrank.suites.collect.usability import stated
from everyrank.suites.engine.case import Case, cases, properties
from everyrank.suites.engine.contract import contract
from everyrank.suites.engine.judge import Outcome, judge
from everyrank.suites.engine.ledger import Entry, Ledger
from everyrank.suites.engine.ledgers import offered
from everyrank.suites.errors import DeclarationError, Deviation, LedgerError

from tests.engines import one_run
from tests.inner import Inner
from tests.made_up_runs import case, header, run_of

TRAINER = Subject("mine", contract="trainer", build=print, known=["torch:fsdp2", "mine.toml"])

_MINE = """
    [[known]]
    case = "{case}"
    kind = "fail"
    match = "{match}"
    issue = "unreported"
"""


def _cases(folder: Path, subject: Subject = TRAINER, case: str = "loss[*]") -> dict[str, Case]:
    (folder / "mine.toml").write_text(_MINE.format(case=case, match="the loss").replace("    ", ""))
    return {each.short_id: each for each in cases(subject, folder)}


def test_a_case_has_the_entry_of_the_shared_ledger(tmp_path: Path) -> None:
    entry = _cases(tmp_path)["parity.models[scalars-ws2]"].entry
    assert entry is not None
    assert (entry.shared, entry.raises) == ("torch:fsdp2", "ValueError")


def test_the_own_entry_of_a_case_comes_first_whatever_the_order(tmp_path: Path) -> None:
    for known in (["torch:fsdp2", "mine.toml"], ["mine.toml", "torch:fsdp2"]):
        found = _cases(tmp_path, replace(TRAINER, known=known), "parity.models[scalars-*]")
        entry = found["parity.models[scalars-ws2]"].entry
        assert entry is not None
        assert (entry.shared, entry.match) == ("", ("the loss",))


def test_a_shared_entry_may_match_no_case_and_an_own_one_may_not(tmp_path: Path) -> None:
    small = replace(TRAINER, sizes=(1,))
    assert _cases(tmp_path, replace(small, known="torch:fsdp2"))
    with pytest.raises(LedgerError, match=r"mine.toml: the entry 'mean\[\*\]' matches no case"):
        _cases(tmp_path, small, "mean[*]")


def test_accept_writes_into_the_ledger_of_the_subject(tmp_path: Path) -> None:
    found = _cases(tmp_path)
    files = {Path(str(dict(properties(each))["ledger-file"])).name for each in found.values()}
    assert files == {"mine.toml"}
    shared = dict(properties(found["parity.models[scalars-ws2]"]))["ledger-shared"]
    assert shared == "torch:fsdp2"


_DEVIATES = Outcome("fail", "step 2: off by 3", Deviation("step 2: off by 3"))


@pytest.mark.parametrize(
    ("shared", "outcome", "verdict"),
    [
        ("", Outcome("pass"), "stale"),
        ("torch:fsdp2", Outcome("pass"), "pass"),
        ("torch:fsdp2", Outcome("approximate"), "approximate"),
        ("torch:fsdp2", _DEVIATES, "known"),
        ("torch:fsdp2", replace(_DEVIATES, text="step 2: nan", error=Deviation("step 2: nan")), "fail"),
    ],
)
def test_an_entry_that_is_shared_excuses_and_demands_nothing(shared: str, outcome: Outcome, verdict: str) -> None:
    entry = Entry("law[*]", "fail", "unreported", match=("off by",), shared=shared)
    assert judge(outcome, entry, None, False)[0] == verdict


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        (Outcome("fail", "raised TypeError", Deviation("raised TypeError", ("TypeError",))), "unsupported"),
        (_DEVIATES, "known"),
        (Outcome("pass"), "stale"),
    ],
)
def test_what_a_subject_lacks_may_first_deviate_as_the_shared_entry_states(outcome: Outcome, verdict: str) -> None:
    entry = Entry("law[*]", "fail", "unreported", match=("off by",), shared="torch:fsdp2")
    assert judge(outcome, entry, Lack(TypeError, "not there"), False)[0] == verdict


def test_a_crash_or_a_hang_is_excused_for_no_other() -> None:
    kinds = ("fail", "error", "timeout", "crash", "documented")
    ledger = Ledger(tuple(Entry(f"law[{kind}]", kind) for kind in kinds), "theirs.toml")
    assert [entry.kind for entry in ledger.shared("torch:theirs").entries] == ["fail", "error", "documented"]


def test_what_a_shared_entry_states_is_no_lack(tmp_path: Path) -> None:
    """A subject without a state_dict is asked for it, although the other's states deviate."""
    needs = _cases(tmp_path)["state.round-trip[NAdam-ws2]"].needs
    assert "state_dict" in needs


def test_sparse_gradients_are_asked_for_unless_a_shared_entry_states_what_comes_of_them() -> None:
    for known, needs in ((None, ("sparse",)), ("torch:hsdp", ("sparse",)), ("torch:fsdp2", ())):
        found = cases(Subject("mine", contract="trainer", build=print, known=known, lacks=["groups"]))
        (case,) = [each for each in found if each.short_id == "parity.sparse[SGD-lr-sparse-sum-ws2]"]
        assert case.needs == needs, known


def test_a_case_that_deviates_otherwise_goes_into_the_own_ledger(tmp_path: Path) -> None:
    part = LedgerPart("fail", "unreported", "theirs", file="mine.toml", shared="torch:fsdp2")
    red = case("none.position", "Muon", "fail", ledger=part)
    run_of(header(subjects={red.subject: "mine.toml"}), [red]).write(tmp_path / "run.jsonl")
    (edit,), left = accept(read_run(tmp_path / "run.jsonl"), {red.subject: tmp_path / "mine.toml"})
    assert ([entry.case for entry in edit.added], left) == (["none.position[Muon-ws2]"], [])


@pytest.mark.parametrize(
    ("known", "error", "message"),
    [
        (["torch:fsdp3"], LedgerError, "mine: trainer has no ledger 'torch:fsdp3'. Did you mean 'torch:fsdp"),
        (
            ["a.toml", "b.toml"],
            DeclarationError,
            "a subject has one ledger of its own at most, and it names a.toml and b",
        ),
    ],
)
def test_a_wrong_name_is_refused(known: list[str], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        cases(replace(TRAINER, known=known))


# --- the end of a run states which ledger declares what is red ------------------------------------------

_BUILT_ON_TORCH = """
    from everyrank.suites import Subject, conformance
    from torch.distributed.optim import DistributedOptimizer

    class AsTorch(DistributedOptimizer):
        pass

    class Faulty(DistributedOptimizer):
        steps = 0

        def step(self, context_id):
            super().step(context_id)
            self.steps += 1
            if self.steps == 4: raise KeyError("on purpose")

    class Otherwise:
        def __init__(self, *args, **kwargs): pass
        def step(self, context_id): pass

    def of(build, **more):
        return Subject(build.__name__ + more.pop("called", ""), "rpc-optimizer", build, **more)

    @conformance(
        of(AsTorch), of(AsTorch, called="-declared", known="torch:scripted"),
        of(Faulty), of(Otherwise), of(Otherwise, called="-listed", known="otherwise.toml"),
    )
    def test_it(case): case.run()
"""

#: Two cases in which torch deviates, the first with TorchScript alone, and one in which it does not.
_RED = "parity.one-step[Adamax-defaults-ws3] or errors.several[but-middle-ws3] or state.kept[ws2]"


built_on_torch = one_run(
    {
        "test_inner.py": _BUILT_ON_TORCH,
        "otherwise.toml": _MINE.format(case="errors.several[but-middle-ws3]", match="did not raise"),
    },
    *("-k", _RED, "-Wignore", "--profile=full", "--run-file=run.jsonl"),
)


def _hints(inner: Inner) -> dict[str, str]:
    """Return what the end of the run says of each subject with red cases."""
    found = re.findall(r"^conformance: (\d.* red cases? of (\S+?):? .*)$", inner.out, re.M)
    return {subject: line for line, subject in found}


def test_the_end_of_a_run_states_the_ledger_that_declares_what_is_red(built_on_torch: Inner) -> None:
    assert _hints(built_on_torch)["AsTorch"] == (
        "2 of 2 red cases of AsTorch deviate as torch:scripted states: if it builds on that, "
        'paste known="torch:scripted" into its Subject, and run again'
    )


def test_the_ledger_that_it_states_declares_them(built_on_torch: Inner) -> None:
    ends = {name.partition("/")[2]: test.outcome for name, test in built_on_torch.tests.items() if "-decl" in name}
    assert sorted(ends.values()) == ["passed", "xfailed", "xfailed"]
    assert "AsTorch-declared" not in _hints(built_on_torch)


def test_a_fault_of_its_own_is_not_counted_as_torchs(built_on_torch: Inner) -> None:
    assert _hints(built_on_torch)["Faulty"].startswith(
        "2 of 3 red cases of Faulty deviate as torch:scripted states: "
    )


def test_who_deviates_otherwise_in_the_same_cases_does_not_deviate_as_torch(built_on_torch: Inner) -> None:
    assert _hints(built_on_torch)["Otherwise"] == (
        "3 red cases of Otherwise: correct it, or list what is known in a ledger: everyrank accept run.jsonl "
        '--ledger mine.toml, and known="mine.toml" in its Subject'
    )
    assert "Otherwise-listed" not in _hints(built_on_torch)


def test_of_fewer_than_half_of_the_red_cases_the_end_of_a_run_names_no_ledger_to_build_on() -> None:
    outcomes = Outcomes()
    cells = [("mine", f"trainer/law[{number}]") for number in range(5)]
    outcomes.cells = dict.fromkeys(cells, "fail")
    outcomes._stated = {cell: ["torch:ddp"] * (number < 2) for number, cell in enumerate(cells)}
    assert outcomes._to_declare("mine", "").startswith("5 red cases of mine: correct it, or list what is known")
    outcomes._stated[cells[2]] = ["torch:ddp"]
    assert outcomes._to_declare("mine", "").startswith("3 of 5 red cases of mine deviate as torch:ddp states")


def test_of_ledgers_that_state_as_much_the_plainest_comes_first() -> None:
    names = {name: [ledger.file for ledger in offered(contract(name))] for name in ("trainer", "sharded-optimizer")}
    assert names["trainer"][:2] == ["torch:state_dict", "torch:ddp"]  # which most others include
    assert names["sharded-optimizer"] == ["torch:torch", "torch:torch_cuda"]


@pytest.mark.parametrize(("known", "names"), [(None, ["torch:ddp"]), ("torch:hsdp", [])])
def test_a_subject_that_names_a_ledger_to_build_on_is_offered_no_other(known: str | None, names: list[str]) -> None:
    subject = Subject("mine", contract="trainer", build=print, known=known)
    (found,) = [each for each in cases(subject) if each.short_id == "parity.models[thawed-ws2]"]
    deviation = Outcome("fail", "step 2: off by 0.1", Deviation("step 2: off by 0.1", off=0.1))
    assert found._stated_by(deviation)[:1] == names


_TWO = ["torch:eager", "torch:scripted"]


def _rank(outcome: str, names: list[str] | None = None) -> dict[str, Any]:
    return {"outcome": outcome, "notes": {} if names is None else {"stated-by": names}}


@pytest.mark.parametrize(
    ("outcome", "failed_in", "ranks", "ledgers"),
    [
        ("fail", ["call"], [_rank("failed", _TWO), _rank("passed")], _TWO),
        ("fail", ["call"], [_rank("failed", _TWO), _rank("failed", _TWO[1:])], _TWO[1:]),
        ("fail", ["call"], [_rank("failed", _TWO[:1]), _rank("failed", _TWO[1:])], []),
        ("error", ["call"], [_rank("failed", _TWO)], _TWO),
        # what no ledger could declare
        ("fail", ["call"], [_rank("failed", _TWO), _rank("failed")], None),
        ("fail", ["call", "teardown"], [_rank("failed", _TWO)], None),
        ("fail", ["call"], [_rank("failed", _TWO), _rank("cut")], None),
        ("crash", ["call"], [_rank("failed", _TWO), _rank("lost")], None),
        ("timeout", ["call"], [_rank("failed", _TWO)], None),
    ],
)
def test_a_ledger_states_a_case_if_it_states_what_each_failed_rank_saw_and_nothing_else_went_wrong(
    outcome: str, failed_in: list[str], ranks: list[dict[str, Any]], ledgers: list[str] | None
) -> None:
    reports: list[Any] = [
        SimpleNamespace(when=when, failed=when in failed_in) for when in ("setup", "call", "teardown")
    ]
    expected = [] if ledgers is None else [("stated-by", " ".join(ledgers))]
    assert stated(outcome, reports, ranks) == expected


def test_accept_states_the_ledgers_of_a_case_whose_subject_names_none(built_on_torch: Inner) -> None:
    _, left = accept(read_run(built_on_torch.folder / "run.jsonl"), {}, ["AsTorch"])
    reasons = {item.case.case.partition("/")[2]: item.reason for item in left}
    assert reasons["parity.one-step[Adamax-defaults-ws3]"] == (
        "its subject names no ledger: give its path with --ledger, or, if it builds on that, write "
        'known="torch:scripted" into its Subject'
    )
    assert 'write known="torch:eager" or known="torch:scripted" into' in reasons["errors.several[but-middle-ws3]"]
