"""What a subject lacks is asked for at once: one case is red and says what to declare, and the rest is not tried."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from everyrank.cli import main
from everyrank.model.ledger import matching
from everyrank.suites import Lack, Subject
from everyrank.suites.engine.capability import capabilities
from everyrank.suites.engine.case import Case, cases
from everyrank.suites.engine.contract import contract, contracts
from everyrank.suites.engine.ledger import read as read_ledger
from everyrank.suites.errors import DeclarationError, LedgerError

from tests.inner import Inner, Project
from tests.run_files import read as read_run

TRAINER = Subject("bare", contract="trainer", build=print)

#: All that a trainer with ``step`` of a batch and ``parameters`` lacks.
ALL = ["accumulation", "clipping", "closures", "groups", "optimizer", "owns", "param_groups", "state_dict"]
DECLARATION = f"lacks={ALL}".replace("'", '"')

_BARE = """
    import torch
    import torch.distributed as dist
    from everyrank.suites import Subject, conformance

    class Bare:
        '''A step, the parameters, and a fault: ranks are weighted by their rows.'''

        def __init__(self, model, optimizer_class, *args, **kwargs):
            self.model = model
            self.wrapped = optimizer_class(model.parameters(), *args, **kwargs)

        def step(self, batch):
            self.wrapped.zero_grad()
            batch.loss(self.model).backward()
            rows = torch.tensor(float(len(batch.inputs)), dtype=torch.float64)
            whole = rows.clone()
            dist.all_reduce(whole)
            for parameter in self.model.parameters():
                parameter.grad *= rows / whole
                dist.all_reduce(parameter.grad)
            self.wrapped.step()

        def parameters(self):
            return dict(self.model.named_parameters())

    class Clips(Bare):
        def step(self, batch, *, max_norm=None):
            super().step(batch)

    SIZES = (2, 1024)
    LACKS = [all of them]
    BARE = Subject("bare", contract="trainer", build=Bare, sizes=SIZES)
    DECLARED = Subject("declared", contract="trainer", build=Bare, sizes=SIZES, lacks=LACKS)
    CLIPS = Subject("clips", contract="trainer", build=Clips, sizes=SIZES, lacks=LACKS)

    @conformance(BARE)
    def test_bare(case): case.run()

    @conformance(DECLARED)
    def test_declared(case): case.run()

    @conformance(CLIPS)
    def test_clips(case): case.run()
""".replace("[all of them]", str(ALL))

#: A case of each capability, and the case of the fault.
_TRIED = (
    "accumulate[parts2-ws2] or clip[cut or closure[LBFGS-everything or parity.groups[SGD-groups-flags "
    "or parity.schedule or alias[at-once or fresh-ws2 or large-world[long-ws1024 or mean[falling or errors.rank[first"
)


@pytest.fixture(scope="module")
def inner(module_project: Project) -> Inner:
    module_project.write("test_inner.py", _BARE)
    return module_project.run("-k", _TRIED, "--profile=full", "-p", "no:randomly", "--run-file=run.jsonl")


def _outcomes(inner: Inner, test: str) -> dict[str, str]:
    """Return the outcomes of the cases of one subject, by law."""
    found = {nodeid.partition(f"::{test}[trainer/")[2]: case for nodeid, case in inner.tests.items()}
    return {name.partition("[")[0]: case.properties["outcome"] for name, case in found.items() if name}


def test_what_is_missing_is_one_red_case_and_the_fault_is_the_other(inner: Inner) -> None:
    outcomes = _outcomes(inner, "test_bare")
    assert len(outcomes) == 10
    assert [law for law, end in outcomes.items() if end == "error"] == ["parity.closure"]
    assert [law for law, end in outcomes.items() if end == "fail"] == ["mean"]
    assert list(outcomes.values()).count("not-run") == 7


def test_an_error_over_c10d_need_not_name_the_rank_that_failed(inner: Inner) -> None:
    """The exemplars declare `names-ranks`, and rogues that name nobody fail the law."""
    assert _outcomes(inner, "test_bare")["errors.rank"] == "pass"


def test_the_red_case_has_a_line_to_paste_and_the_error_of_each(inner: Inner) -> None:
    text = inner["test_bare[trainer/parity.closure[LBFGS-everything-ws2]]"].text
    lines = text[text.index("bare lacks") :].splitlines()
    assert lines[0] == f"bare lacks what it does not declare: add it, or paste {DECLARATION} into its Subject"
    assert [line.split()[0] for line in lines[1:9]] == ALL
    assert not re.search(r"everyrank/[\w/]+\.py", text), "a traceback of ours"


def test_a_case_that_is_not_tried_names_what_it_needs(inner: Inner) -> None:
    text = inner["test_bare[trainer/clip[cut-ws2]]"].text
    assert "not tried: no clipping: see test_inner.py::test_bare[trainer/parity.closure[" in text


def test_the_end_of_the_run_counts_them_and_has_the_line_to_paste(inner: Inner) -> None:
    text = f"bare lacks what it does not declare: add it, or paste {DECLARATION} into its Subject"
    assert f"conformance: 7 cases not tried: {text}" in inner.out.splitlines()


def test_what_is_declared_by_name_must_be_refused(inner: Inner) -> None:
    outcomes = _outcomes(inner, "test_declared")
    assert (outcomes.pop("mean"), outcomes.pop("errors.rank")) == ("fail", "pass")
    assert set(outcomes.values()) == {"unsupported"}


def test_what_is_declared_by_name_and_works_is_stale(inner: Inner) -> None:
    outcomes = _outcomes(inner, "test_clips")
    red = {law: end for law, end in outcomes.items() if end not in ("pass", "unsupported")}
    assert red.keys() == {"clip", "mean"}
    assert red["clip"] != "not-run"


def test_accept_writes_them_into_a_ledger_and_accepts_no_fault(
    inner: Inner, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, ledger = str(inner.folder / "run.jsonl"), tmp_path / "mine.toml"
    assert main(["accept", run, "--lacks", "--subject=bare", f"--ledger={ledger}"]) == 0
    assert capsys.readouterr().out.endswith("8 lacks declared\n")
    written = read_ledger(ledger)
    assert (written.lacks, written.entries) == (tuple(ALL), ())
    found = cases(replace(TRAINER, known=ledger))
    assert [case.law.id for case in found if case.needs] == []


def test_accept_prints_them_for_a_subject_without_a_ledger(inner: Inner, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accept", str(inner.folder / "run.jsonl"), "--lacks"]) == 1
    assert f"paste {DECLARATION} into its Subject" in capsys.readouterr().out


def test_the_run_file_has_them(inner: Inner) -> None:
    missing = {tuple(line.get("missing", ())) for line in read_run(inner.folder / "run.jsonl").cases}
    assert missing == {(), tuple(ALL)}


# --- declarations, without a process ------------------------------------------------------------------


def _lacking(found: list[Case]) -> set[str]:
    return {case.law.id for case in found if case.lack is not None}


def test_each_name_of_a_capability_stands_for_cases_of_its_contract() -> None:
    for name in contracts():
        ids = [case.short_id for case in cases(Subject("any", name, print))]
        for capability in capabilities(contract(name)).values():
            for pattern in capability.cases:
                assert matching(pattern, ids), (name, capability.name, pattern)


def test_names_and_patterns_stand_side_by_side() -> None:
    clipping = Lack(NotImplementedError, "later")
    found = cases(replace(TRAINER, lacks={"clipping": clipping, "loss[*]": Lack(TypeError, "none")}))
    assert _lacking(found) == {"clip", "non-finite", "loss"}
    assert {case.lack for case in found if case.law.id == "clip"} == {clipping}


def test_names_stand_beside_patterns_with_errors() -> None:
    none = Lack(TypeError, "none")
    found = cases(replace(TRAINER, lacks=["clipping", {"loss[*]": none}]))
    assert _lacking(found) == {"clip", "non-finite", "loss"}
    assert {case.lack for case in found if case.law.id == "loss"} == {none}


def test_a_ledger_may_declare_them_too(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('lacks = ["clipping"]\n')
    found = cases(replace(TRAINER, known="mine.toml", lacks=["owns"]), tmp_path)
    assert _lacking(found) == {"clip", "non-finite", "large-world"}


def test_a_known_case_is_not_asked_for_what_it_needs(tmp_path: Path) -> None:
    entry = 'case = "large-world[*]"\nkind = "fail"\nraises = "AttributeError"\nissue = "unreported"'
    (tmp_path / "mine.toml").write_text(f"[[known]]\n{entry}\n")
    found = cases(replace(TRAINER, known="mine.toml"), tmp_path)
    assert not any("owns" in case.claims for case in found)


@pytest.mark.parametrize(
    ("lacks", "message"),
    [
        (["cliping"], "trainer has no capability of that name. Did you mean 'clipping'? It has accumulation, "),
        (["clip[*]"], "A pattern over case ids needs an error: lacks={'the pattern': Lack(TypeError, 'why')}"),
        ("clipping", "bare: lacks is a list of capabilities: ['clipping']"),
        ([3], "bare: lacks is a list of names of capabilities, not of 3"),
    ],
)
def test_a_wrong_name_is_refused(lacks: object, message: str) -> None:
    with pytest.raises(DeclarationError, match=re.escape(message)):
        cases(replace(TRAINER, lacks=lacks))  # type: ignore[arg-type]


def test_a_wrong_list_in_a_ledger_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("lacks = 3\n")
    with pytest.raises(LedgerError, match=r"mine.toml: lacks is a list of the names of capabilities, not 3"):
        read_ledger(tmp_path / "mine.toml")
