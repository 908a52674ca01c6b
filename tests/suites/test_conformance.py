"""The engine of the kit passes what keeps the laws, fails what breaks them, and says what is wrong with the rest."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from everyrank.model.ledger import matches
from everyrank.suites import Contract, Lack, Subject
from everyrank.suites.engine.case import cases
from everyrank.suites.engine.ledger import read
from everyrank.suites.errors import DeclarationError, LedgerError

from tests.engines import one_run
from tests.inner import Inner, Project
from tests.run_files import read as read_run

_SUBJECTS = """
    from everyrank.fixtures.exemplars.rpc_optimizer import RpcOptimizer
    from everyrank.suites import Lack, Subject, conformance

    class Nothing:
        def __init__(self, *args, **kwargs): pass
        def step(self, context_id): pass

    NOTHING = Subject("nothing", contract="rpc-optimizer", build=Nothing)
    NO_STEP = Subject("no-step", contract="rpc-optimizer", build=lambda *args, **kwargs: 42)
    LEDGER = Subject("ledger", contract="rpc-optimizer", build=Nothing, known="known.toml")
    STALE = Subject("stale", contract="rpc-optimizer", build=RpcOptimizer, known="known.toml")

    class Refuses(RpcOptimizer):
        def __init__(self, optimizer, parameters, **kwargs):
            if kwargs.get("momentum"):
                raise NotImplementedError("no momentum")
            super().__init__(optimizer, parameters, **kwargs)

    def leave(*args, **kwargs):
        import os
        os._exit(3)

    CRASHES = Subject("crashes", contract="rpc-optimizer", build=leave)

    LACKS = {"state.kept[ws2]": Lack(NotImplementedError, "momentum is not done yet")}
    REFUSES = Subject("refuses", contract="rpc-optimizer", build=Refuses, lacks=LACKS)
    WORKS = Subject("works", contract="rpc-optimizer", build=RpcOptimizer, lacks=LACKS)

    @conformance(NOTHING)
    def test_nothing(case): case.run()

    @conformance(NO_STEP)
    def test_no_step(case): case.run()

    @conformance(LEDGER)
    def test_ledger(case): case.run()

    @conformance(STALE)
    def test_stale(case): case.run()

    @conformance(REFUSES)
    def test_refuses(case): case.run()

    @conformance(CRASHES)
    def test_crashes(case): case.run()

    @conformance(WORKS)
    def test_works(case): case.run()
"""

_KNOWN = """
    [[known]]
    case = "state.kept[ws2]"
    kind = "fail"
    issue = "unreported"
    note = "does not move"
"""


inner = one_run(
    {"known.toml": _KNOWN, "test_inner.py": _SUBJECTS}, "--law=state.kept", "-Wignore", "--run-file=run.jsonl"
)


def _case(inner: Inner, test: str) -> str:
    return inner[f"{test}[rpc-optimizer/state.kept[ws2]]"].outcome


def test_a_subject_that_does_nothing_is_red(inner: Inner) -> None:
    result = inner["test_nothing[rpc-optimizer/state.kept[ws2]]"]
    assert result.outcome == "failed"
    assert "[fail] nothing rpc-optimizer/state.kept[ws2]" in result.text
    assert "step 1, parameter 0 on worker1: as it was a step before (stale)\n  off by" in result.text
    assert result.properties["outcome"] == "fail"


def test_a_broken_adapter_is_reported_as_such(inner: Inner) -> None:
    text = inner["test_no_step[rpc-optimizer/state.kept[ws2]]"].text
    assert "the adapter is at fault, not the implementation" in text
    assert "build of no-step returned a int, which has no step(context_id)" in text


def test_a_known_deviation_is_an_expected_failure(inner: Inner) -> None:
    assert _case(inner, "test_ledger") == "xfailed"


def test_a_ledger_entry_that_passes_is_stale_and_red(inner: Inner) -> None:
    assert _case(inner, "test_stale") == "failed"
    assert "and it passes: remove it" in inner["test_stale[rpc-optimizer/state.kept[ws2]]"].text


def test_a_declared_lack_must_be_refused_as_declared(inner: Inner) -> None:
    result = inner["test_refuses[rpc-optimizer/state.kept[ws2]]"]
    assert (result.outcome, result.properties["outcome"]) == ("passed", "unsupported")


def test_a_known_deviation_and_a_lack_of_what_one_rank_drives_keep_their_world(inner: Inner) -> None:
    lines = {line["subject"]: line for line in read_run(inner.folder / "run.jsonl").cases}
    kept = {subject: "not_kept" not in lines[subject] for subject in ("nothing", "ledger", "refuses")}
    assert kept == {"nothing": False, "ledger": True, "refuses": True}


def test_a_declared_lack_that_works_is_stale_and_red(inner: Inner) -> None:
    assert _case(inner, "test_works") == "failed"


def test_a_crash_has_an_outcome_too(inner: Inner) -> None:
    result = inner["test_crashes[rpc-optimizer/state.kept[ws2]]"]
    assert (result.outcome, result.properties["outcome"]) == ("failed", "crash")
    assert result.properties["subject"] == "crashes"


def test_the_last_line_counts_cases_and_outcomes(inner: Inner) -> None:
    (line,) = [line for line in inner.out.splitlines() if line.startswith("conformance: 7 cases of 7 subjects in ")]
    counts = line.rsplit(": ", 1)[1].split(", ")
    assert sorted(counts) == ["1 crash", "1 error", "1 fail", "1 known", "1 unsupported", "2 stale"]


def test_a_limit_that_the_library_documents_is_counted_and_shown_as_that(project: Project) -> None:
    documented = _KNOWN.replace('kind = "fail"', 'kind = "documented"')
    link = "https://example.org/limits"
    project.write("known.toml", documented.replace('issue = "unreported"', f'link = "{link}"'))
    project.write("test_inner.py", _SUBJECTS)
    chosen = ("--law=state.kept", "-k", "test_ledger or test_stale", "-W", "ignore", "--run-file=out.jsonl")
    inner = project.run(*chosen, "-rx", "-o", "verbosity_test_cases=1")
    assert _case(inner, "test_ledger") == "xfailed"
    assert _case(inner, "test_stale") == "failed"
    assert "conformance: 2 cases of 2 subjects" in inner.out
    assert "1 known (1 documented)" in inner.out
    assert f"documented: does not move ({link}): step 1, parameter 0 on worker1: off by" in inner.out
    assert "documented by the library itself: 1 of 1 known" in inner.out
    lines = [json.loads(line) for line in (inner.folder / "out.jsonl").read_text().splitlines()]
    (known,) = [line for line in lines if line.get("outcome") == "known"]
    assert (known["ledger"]["kind"], known["ledger"]["issue"], known["ledger"]["link"]) == ("documented", "", link)


def test_what_the_machine_could_not_try_stands_beside_the_outcomes(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    project.write(
        "test_inner.py",
        """
        from everyrank.suites import Subject, conformance

        @conformance(Subject("gpu", contract="sharded-optimizer", build=print, device="cuda"))
        def test_gpu(case): case.run()
        """,
    )
    inner = project.run("--law=closure", "--optimizer=SGD", "--profile=full")
    tried = re.findall(r"^conformance: not tried: (\d+) cases?: (.*GPUs?.*)$", inner.out, re.M)
    assert sum(int(count) for count, _ in tried) == len(inner.tests) > 0


def test_case_ids_are_unique_and_name_contract_law_and_size() -> None:
    found = cases(Subject("any", contract="rpc-optimizer", build=print))
    ids = [case.id for case in found]
    assert len(set(ids)) == len(ids) > 600
    assert "rpc-optimizer/parity.one-step[AdamW-amsgrad-ws3]" in ids


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("known = 3 3", "not TOML"),
        ("[[knwon]]", "unknown key 'knwon'"),
        ('[[known]]\nkind = "fail"', "an entry without `case`"),
        ('[[known]]\ncase = "a"\nkind = "sad"', "kind must be one of fail, error, timeout, crash, documented, not"),
        ('[[known]]\ncase = "a"\nkind = "fail"\nissue = "soon"', 'issue must be a link or "unreported"'),
        ('[[known]]\ncase = "a"\nkind = "fail"\nisue = "soon"', "unknown key 'isue'"),
        ('[[known]]\ncase = "a"\nkind = "documented"', "a: link must lead to where the limit is documented, not be"),
        (
            '[[known]]\ncase = "a"\nkind = "documented"\nlink = "https://x"\nissue = "unreported"',
            "a: a documented limit has a link, and no issue",
        ),
        ('[[known]]\ncase = "a"\nkind = "fail"\nlink = "https://x"', 'a: link is for kind = "documented"'),
    ],
)
def test_a_ledger_that_cannot_be_believed_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "known.toml").write_text(text)
    with pytest.raises(LedgerError) as refused:
        read(tmp_path / "known.toml")
    assert message in str(refused.value)


def test_a_ledger_entry_for_no_case_or_claimed_twice_is_refused(tmp_path: Path) -> None:
    entry = '[[known]]\ncase = "{}"\nkind = "fail"\nissue = "unreported"\n'
    file = tmp_path / "known.toml"
    subject = Subject("any", contract="rpc-optimizer", build=print, known=file)
    file.write_text(entry.format("state.kpet[ws2]"))
    with pytest.raises(LedgerError, match="matches no case"):
        cases(subject)
    file.write_text(entry.format("state.kept[ws2]") + entry.format("state.*"))
    with pytest.raises(LedgerError, match="claimed twice"):
        cases(subject)


def test_an_entry_that_covers_several_cases_states_what_is_seen(tmp_path: Path) -> None:
    file = tmp_path / "known.toml"
    subject = Subject("any", contract="rpc-optimizer", build=print, known=file)
    entry = '[[known]]\ncase = "errors.*"\nkind = "{}"\nissue = "unreported"\n{}\n'
    file.write_text(entry.format("fail", ""))
    with pytest.raises(
        LedgerError, match=r"'errors.\*' covers \d+ cases: say what is seen, by match, raises or at_m"
    ):
        cases(subject)
    for kind, statement in (("fail", 'match = "off by"'), ("error", 'raises = "KeyError"'), ("crash", "")):
        file.write_text(entry.format(kind, statement))
        assert cases(subject)


def test_a_ledger_entry_for_what_is_lacking_would_never_be_looked_at(tmp_path: Path) -> None:
    file = tmp_path / "known.toml"
    file.write_text('[[known]]\ncase = "state.kept[ws2]"\nkind = "fail"\nissue = "unreported"\n')
    lacks = {"state.*": Lack(ValueError, "")}
    with pytest.raises(LedgerError, match=r"'state.kept\[ws2\]' matches only cases that the subject lacks"):
        cases(Subject("any", contract="rpc-optimizer", build=print, known=file, lacks=lacks))


def test_brackets_in_patterns_are_brackets() -> None:
    assert matches("none.position[*-first-ws2]", "none.position[Adam-first-ws2]")
    assert not matches("none.position[Adam]", "none.positionA")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"contract": "rpc"}, "unknown contract 'rpc'"),
        ({"contract": "rpc-optimizer", "lacks": {"nothing.*": Lack(ValueError, "")}}, "matches no case"),
        ({"contract": "replicate", "sizes": (2, 64)}, "no case at world size 64: it has cases at 1, 2, 3, 4"),
        (
            {"contract": "replicate", "sizes": ()},
            "sizes names no world size of replicate: it has cases at 1, 2, 3, 4; leave",
        ),
        (
            {"contract": "replicate", "declares": frozenset({"local"})},
            "no choice called 'local': it leaves local-b",
        ),
        (
            {"contract": Contract("own", print), "declares": frozenset({"any"})},
            "no choice called 'any': it leaves none",
        ),
    ],
)
def test_a_wrong_declaration_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        cases(Subject("any", build=print, **arguments))  # type: ignore[arg-type]


_OWN = """
    import torch
    from everyrank.fixtures.exemplars.rpc_optimizer import RpcOptimizer
    from everyrank.fixtures.optimizers import Row, Variant, register
    from everyrank.suites import Subject, conformance

    class Mine(torch.optim.SGD):
        pass

    register(Row(Mine, (Variant("defaults"),)))

    @conformance(Subject("mine", contract="rpc-optimizer", build=RpcOptimizer))
    def test_mine(case): case.run()
"""


def test_a_row_of_the_users_own_is_filtered_for_in_workers_too(project: Project) -> None:
    project.write("test_inner.py", _OWN)
    inner = project.run("--optimizer=mine", "--law=parity.one-step", "-n", "1")
    assert inner.code == 0, inner.out
    assert list(inner.outcomes()) == ["test_mine[rpc-optimizer/parity.one-step[Mine-defaults-ws3]]"]


def test_an_unknown_optimizer_is_refused_by_workers_too(project: Project) -> None:
    project.write("test_inner.py", _OWN)
    inner = project.run("--optimizer=Adma", "-n", "1")
    assert inner.code == 4
    assert "--optimizer: no row is called 'Adma'. Did you mean 'Adamax' or 'Adam' or 'RAdam'?" in inner.out
    assert ", SparseAdam, Mine\n" in inner.out
    assert "Traceback" not in inner.out
