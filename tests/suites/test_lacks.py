"""What a subject lacks is asked for at once: one case is red and says what to declare, and the rest is not tried."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from everyrank import current_world
from everyrank.cli import main
from everyrank.model.ledger import matching
from everyrank.suites import Lack, Subject
from everyrank.suites.engine.capability import capabilities, declarable
from everyrank.suites.engine.case import Case, cases
from everyrank.suites.engine.contract import Point, contract, contracts
from everyrank.suites.engine.ledger import read as read_ledger
from everyrank.suites.errors import DeclarationError, LedgerError
from everyrank.suites.trainer.arena import Arena
from everyrank.suites.trainer.capabilities import CAPABILITIES
from everyrank.suites.trainer.subjects.exemplars import DATA_PARALLEL, SHARDED

from tests.engines import one_run
from tests.inner import Inner
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


inner = one_run(_BARE, "-k", _TRIED, "--profile=full", "-p", "no:randomly", "--run-file=run.jsonl")


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
    assert {name for case in found for name in case.needs} == {"sparse"}  # which it has


def test_accept_prints_them_for_a_subject_without_a_ledger(inner: Inner, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["accept", str(inner.folder / "run.jsonl"), "--lacks"]) == 1
    assert f"paste {DECLARATION} into its Subject" in capsys.readouterr().out


def test_the_run_file_has_them(inner: Inner) -> None:
    missing = {tuple(line.get("missing", ())) for line in read_run(inner.folder / "run.jsonl").cases}
    assert missing == {(), tuple(ALL)}


# --- what the laws alone can tell ---------------------------------------------------------------------

_OTHERS = """
    import torch
    from everyrank.suites import Subject, conformance
    from everyrank.fixtures.exemplars.sharded_optimizer import ShardedOptimizer
    from torch.nn.parallel import DistributedDataParallel

    class Sharded:
        '''A step of shards, and no more: an error stays on its rank.'''

        def __init__(self, optimizer_class, named, *args, **kwargs):
            if not optimizer_class.__module__.startswith("torch."):
                raise NotImplementedError(f"{optimizer_class.__name__} is not known")
            pieces = []
            for value in named.values():
                sharded = hasattr(value, "local_shards")
                pieces += [shard.tensor for shard in value.local_shards()] if sharded else [value]
            self.inner = optimizer_class(pieces, *args, **kwargs)

        def step(self, closure=None):
            return self.inner.step(closure)

    SHARDED = ["add_param_group", "clip_grad_norm_", "named_parameters", "shard_parameter", "state_dict", "zero_grad"]
    LATER = ["own-classes", "shared-errors"]

    @conformance(Subject("sharded", contract="sharded-optimizer", build=Sharded))
    def test_sharded(case): case.run()

    @conformance(Subject("named", contract="sharded-optimizer", build=Sharded, lacks=SHARDED))
    def test_named(case): case.run()

    @conformance(Subject("declared", contract="sharded-optimizer", build=Sharded, lacks=SHARDED + LATER))
    def test_declared(case): case.run()

    @conformance(Subject("shares", contract="sharded-optimizer", build=ShardedOptimizer, lacks=LATER))
    def test_shares(case): case.run()

    @conformance(Subject("ddp", contract="replicate", build=DistributedDataParallel))
    def test_ddp(case): case.run()

    @conformance(Subject("keys", contract="replicate", build=DistributedDataParallel,
                         lacks=["ignored_modules", "device_id"]))
    def test_keys(case): case.run()

    @conformance(Subject("plain", contract="replicate", build=DistributedDataParallel,
                         lacks=["ignored_modules", "device_id", "local-keys"]))
    def test_plain_ddp(case): case.run()
"""

_OF_OTHERS = (
    "grad.zero[default or clip[even or tied[model-ws or frozen[whole-ws or state.groups[SGD-groups-ws "
    "or errors.rank[construction-rank1-ws3 or errors.rank[step-rank1-ws3 "
    "or ignored[plain-first-ws2 or device-id[cpu-ws1 or state-dict[plain-ws2 or accumulate[parts2-ws2"
)
_FAULT_OF_SHARDED = "sharded-optimizer/errors.rank[construction-rank1-ws3]"


others = one_run(
    {"test_others.py": _OTHERS}, "test_others.py", "-k", _OF_OTHERS, "--profile=full", "-pno:randomly", "-Wignore"
)


def test_each_contract_asks_for_its_methods_and_options_at_once(others: Inner) -> None:
    names = '"add_param_group", "clip_grad_norm_", "named_parameters", "shard_parameter", "state_dict", "zero_grad"'
    assert f"sharded lacks what it does not declare: add it, or paste lacks=[{names}] into its Subject" in others.out
    assert 'ddp lacks what it does not declare: add it, or paste lacks=["device_id", "ignored_modules"]' in others.out
    assert list(others.endings("test_sharded").values()).count("not-run") == 4


def test_a_red_case_names_the_lack_that_would_declare_it(others: Inner) -> None:
    text = others[f"test_named[{_FAULT_OF_SHARDED}]"].text
    assert "heard nothing of the error on rank 1" in text
    assert 'If it is to do without that, lacks=["shared-errors"] says so: an error on one rank is raised' in text
    text = others["test_named[sharded-optimizer/errors.rank[step-rank1-ws3]]"].text
    assert 'lacks=["own-classes"] says so' in text
    text = others["test_keys[replicate/state-dict[plain-ws2]]"].text
    assert "have one prefix, and those of a wrapper must be those of the module that was given to build" in text
    assert 'lacks=["local-keys"] says so' in text


def test_what_has_a_name_is_declared_by_it_and_no_case_is_red(others: Inner) -> None:
    ends = others.endings("test_declared") | others.endings("test_plain_ddp")
    assert len(ends) == 11
    assert set(ends.values()) == {"unsupported", "pass"}


def test_a_lack_where_nothing_is_refused_must_be_seen(others: Inner) -> None:
    assert others.endings("test_shares")["errors.rank[construction-rank1-ws3]"] == "stale"


def _declarable(text: str, raised: tuple[str, ...], case: str = "clip[cut-ws2]", crosses: bool = False) -> list[str]:
    found = declarable(contract("trainer"), case, crosses, text, raised)
    return [each.name for each in found]


def test_a_mistake_is_no_lack() -> None:
    assert _declarable("raised AttributeError: 'Mine' object has no attribute 'stpe'", ("AttributeError",)) == []
    assert _declarable("raised TypeError: unsupported operand type(s)", ("TypeError",)) == []
    assert _declarable("step 1, weight: off by 0.1", ()) == []
    assert _declarable("raised NotImplementedError", ("NotImplementedError", "RuntimeError")) == ["clipping"]


def test_a_crossing_lacks_what_its_move_needs() -> None:
    text = "clip: move 2, step(max_norm=0.1): on rank 0: raised NotImplementedError: later"
    assert _declarable(text, ("NotImplementedError",), "crossings[SGD-plain-001-ws2]", crosses=True) == ["clipping"]
    text = "frozen: move 3, save(): raised AttributeError: 'Mine' object has no attribute 'state_dict'"
    assert _declarable(text, ("AttributeError",), "crossings[SGD-plain-001-ws2]", crosses=True) == ["state_dict"]


def test_a_command_prints_the_laws_and_the_lacks_of_a_contract(capsys: pytest.CaptureFixture[str]) -> None:
    for name in contracts():
        assert main(["cases", name, "--lacks"]) == 0
        printed = capsys.readouterr().out.splitlines()
        assert [line.split()[0] for line in printed] == list(capabilities(contract(name)))
        assert all(len(line.split()) > 2 for line in printed)
    assert main(["cases", "replicate", "--laws"]) == 0
    assert "state-dict\n    A state dict has the local module's keys" in capsys.readouterr().out


# --- declarations, without a process ------------------------------------------------------------------


def _lacking(found: list[Case]) -> set[str]:
    return {case.law.id for case in found if case.lack is not None}


def test_each_name_of_a_capability_stands_for_cases_of_its_contract() -> None:
    for name in contracts():
        ids = [case.short_id for case in cases(Subject("any", name, print))]
        for capability in capabilities(contract(name)).values():
            for pattern in capability.cases:
                assert matching(pattern, ids), (name, capability.name, pattern)


def test_who_lacks_the_whole_of_a_capability_lacks_its_part() -> None:
    for name in contracts():
        ids = [case.short_id for case in cases(Subject("any", name, print))]
        known = capabilities(contract(name))
        for capability in known.values():
            if capability.part_of:
                rest = capability.needed_by(ids) - known[capability.part_of].needed_by(ids)
                assert not rest, f"{name}: {capability.part_of} has all cases of {capability.name}, its part"


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


def test_a_subject_that_declares_its_laws_by_patterns_is_not_asked_for_the_rest() -> None:
    none = Lack(AttributeError, "none")
    found = cases(Subject("mine", "replicate", print, lacks={"accumulate[*]": none}))
    assert not any("no_sync" in case.claimed for case in found)
    for a_part in ("accumulate[local-*]", "accumulate[parts2-*]"):
        found = cases(Subject("mine", "replicate", print, lacks={a_part: none}))
        assert any("no_sync" in case.claimed for case in found), a_part


def test_a_ledger_may_declare_them_too(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('lacks = ["clipping"]\n')
    found = cases(replace(TRAINER, known="mine.toml", lacks=["owns"]), tmp_path)
    assert _lacking(found) == {"clip", "non-finite", "large-world"}


def test_a_known_case_is_not_asked_for_what_it_needs(tmp_path: Path) -> None:
    entry = 'case = "large-world[*]"\nkind = "fail"\nraises = "AttributeError"\nissue = "unreported"'
    (tmp_path / "mine.toml").write_text(f"[[known]]\n{entry}\n")
    found = cases(replace(TRAINER, known="mine.toml"), tmp_path)
    assert not any("owns" in case.claimed for case in found)


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


@pytest.mark.world(2)
@pytest.mark.parametrize("exemplar", [DATA_PARALLEL, SHARDED], ids=lambda subject: subject.name)
def test_an_exemplar_lacks_nothing_if_it_is_no_exemplar(exemplar: Subject, process_group: object) -> None:
    arena = Arena(exemplar, Point("own", 2), current_world())
    for each in CAPABILITIES:
        if each.use is not None:
            each.use(arena)
