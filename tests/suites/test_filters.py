"""What ``--law`` and ``--optimizer`` leave out is counted, and a filter that fits nothing ends the run."""

from __future__ import annotations

from pathlib import Path

import pytest
from everyrank.fixtures import optimizers
from everyrank.suites import Subject
from everyrank.suites.collect import profile
from everyrank.suites.collect.filters import Filters, left_out
from everyrank.suites.engine.case import cases

from tests.inner import Project
from tests.run_files import read

RPC = Subject("mine.Rpc", contract="rpc-optimizer", build=print)
REPLICATE = Subject("mine.Replicate", contract="replicate", build=print)


def test_what_a_filter_leaves_out_is_counted_by_its_reason() -> None:
    found = cases(RPC)
    named = [case for case in found if case.law.id.startswith("none.") and case.point.optimizer]
    unnamed = [case for case in found if case.law.id.startswith("none.") and not case.point.optimizer]
    adams = [case for case in named if case.point.optimizer.startswith("Adam")]
    selection = Filters("none.*", "adam*").select(RPC, found)
    assert list(selection.cases) == adams
    assert {case.point.optimizer for case in adams} >= {"Adam", "AdamW"}
    assert left_out([selection]).lines() == [
        f"--law none.* leaves out {len(found) - len(named) - len(unnamed):,} cases of other laws",
        f"--optimizer adam* leaves out {len(named) - len(adams):,} cases of other optimizers and "
        f"{len(unnamed):,} cases of laws that name no optimizer",
    ]


def test_without_a_filter_nothing_is_left_out() -> None:
    found = cases(RPC)
    selection = Filters(None, None).select(RPC, found)
    assert list(selection.cases) == found
    assert left_out([selection]).lines() == []


def test_a_subject_without_a_fitting_case_is_named_but_is_no_error_beside_one_that_has_some() -> None:
    filters = Filters("state.kept", None)
    selections = [filters.select(subject, cases(subject)) for subject in (RPC, REPLICATE)]
    assert filters.problem(selections) == ""
    assert left_out(selections).lines()[-1] == "no case is left of mine.Replicate"
    assert filters.problem(selections[1:]).startswith("no case of mine.Replicate fits: --law state.kept leaves out ")


@pytest.mark.parametrize(
    ("optimizer", "hint"),
    [
        ("Adma", " Did you mean 'Adamax' or 'Adam' or 'RAdam'?"),
        ("rmspop", " Did you mean 'RMSprop' or 'Rprop'?"),
        ("xyzzy", ""),
    ],
)
def test_a_misspelled_optimizer_is_refused_with_the_closest_names(optimizer: str, hint: str) -> None:
    names = ", ".join(row.name for row in optimizers.rows())
    expected = f"--optimizer: no row is called '{optimizer}'.{hint} There are {names}"
    assert Filters(None, optimizer).problem([]) == expected


@pytest.mark.parametrize(
    ("law", "hint"),
    [
        ("erors.*", " Did you mean 'errors.*'"),
        ("parity.onestep", " Did you mean 'parity.one-step'"),
        ("parity", " Did you mean 'parity.*'"),
        ("xyzzy", " The laws are "),
    ],
)
def test_a_misspelled_law_is_refused_with_the_closest_names(law: str, hint: str) -> None:
    assert Filters(law, None).problem([]).startswith(f"--law: no law is called '{law}'.{hint}")


@pytest.mark.parametrize(
    ("installed", "names"), [(("other",), {"--profile"}), (("pytest_profiling",), set())], ids=["alone", "taken"]
)
def test_the_short_name_of_the_profile_is_left_to_pytest_profiling(
    installed: tuple[str, ...], names: set[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in installed:
        (tmp_path / f"{module}.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    group = pytest.Parser(_ispytest=True).getgroup("any")
    profile.add(group)
    (option,) = group.options
    assert set(option.names()) == {"--conformance-profile", *names}


# --- in a run ----------------------------------------------------------------------------------------

_TESTS = """
    import pytest
    from everyrank.fixtures.exemplars.replicate import replicate
    from everyrank.fixtures.exemplars.rpc_optimizer import RpcOptimizer
    from everyrank.suites import Subject, conformance

    @conformance(Subject("mine.Rpc", contract="rpc-optimizer", build=RpcOptimizer))
    def test_rpc(case): case.run()

    @conformance(Subject("mine.Replicate", contract="replicate", build=replicate))
    def test_replicate(case): case.run()

    def test_plain(): pass
"""


def test_a_run_with_workers_prints_what_was_left_out_and_no_skip_stands_for_it(project: Project) -> None:
    project.write("test_inner.py", _TESTS)
    inner = project.run("-q", "--law=state.kept", "--run-file=run.jsonl", "-n", "1")
    assert inner.code == 0, inner.out
    assert inner.outcomes() == {"test_rpc[rpc-optimizer/state.kept[ws2]]": "passed", "test_plain": "passed"}
    others = sum(case.law.id != "state.kept" for subject in (RPC, REPLICATE) for case in cases(subject))
    assert [line for line in inner.out.splitlines() if line.startswith("filtered: ")] == [
        f"filtered: --law state.kept leaves out {others:,} cases of other laws",
        "filtered: no case is left of mine.Replicate",
    ]
    header = read(project.folder / "run.jsonl").header
    assert header["left_out"] == [{"filter": "--law state.kept", "reason": "of other laws", "cases": others}]


def test_only_what_was_asked_for_is_counted(project: Project) -> None:
    project.write("test_inner.py", _TESTS)
    inner = project.run("test_inner.py::test_rpc", "--law=state.kept", "--collect-only")
    assert inner.code == 0, inner.out
    others = sum(case.law.id != "state.kept" for case in cases(RPC))
    assert f"\nfiltered: --law state.kept leaves out {others:,} cases of other laws\n" in inner.out
    assert "mine.Replicate" not in inner.out


def test_the_run_file_of_a_quick_run_names_the_profile(project: Project) -> None:
    project.write("test_inner.py", _TESTS)
    arguments = ("--profile=quick", "--optimizer=Rprop", "--run-file=run.jsonl", "-k", "rpc")
    inner = project.run(*arguments)
    assert inner.code == 0, inner.out
    assert list(inner.outcomes().values()) == ["passed"]
    left_out = {line["filter"] for line in read(project.folder / "run.jsonl").header["left_out"]}
    assert left_out == {"--profile=quick", "--optimizer Rprop"}


def test_a_case_that_is_named_runs_whatever_the_profile(project: Project) -> None:
    project.write("test_inner.py", _TESTS)
    left = "rpc-optimizer/parity.one-step[SGD-nesterov-ws3]"
    named = project.run(f"test_inner.py::test_rpc[{left}]", "--profile=quick", "--collect-only")
    assert f"<Function test_rpc[{left}]>" in named.out
    assert "1 test collected" in named.out
    by_expression = project.run("-k", left, "--profile=quick", "--collect-only")
    assert f"<Function test_rpc[{left}]>" in by_expression.out


def test_filters_that_fit_no_case_of_any_subject_are_a_usage_error_of_workers_too(project: Project) -> None:
    project.write("test_inner.py", _TESTS)
    inner = project.run("--law=state.kept", "--optimizer=SGD", "-n", "1")
    assert inner.code == 4, inner.out
    assert "ERROR: no case of mine.Rpc, mine.Replicate fits: --law state.kept leaves out" in inner.out
    assert inner.outcomes() == {}
    assert "Traceback" not in inner.out
    assert "skipped" not in inner.out


def test_a_file_that_cannot_be_read_is_not_taken_for_a_filter_that_fits_nothing(project: Project) -> None:
    project.write("test_inner.py", "import everyrank.suites, nowhere")
    inner = project.run("--optimizer=Mine")
    assert inner.code == 2
    assert "No module named 'nowhere'" in inner.out
    assert "no row is called" not in inner.out


def test_a_spawned_rank_does_not_judge_the_filters_by_its_one_file(project: Project) -> None:
    rpc, replicate = _TESTS.split('    @conformance(Subject("mine.Replicate"')
    project.write("test_rpc.py", rpc)
    header = rpc.split("    @conformance")[0]
    replicate = replicate.replace("def test_plain", "@pytest.mark.world(1)\n    def test_plain")
    project.write("test_replicate.py", f'{header}    @conformance(Subject("mine.Replicate"{replicate}')
    project.forks_keeper = True
    inner = project.run("-k", "plain", "--law=state.kept", "--launcher=spawn")
    assert inner.code == 0, inner.out
    assert inner.outcomes() == {"test_plain": "passed"}


def test_a_run_without_a_subject_takes_the_filters_and_prints_nothing(project: Project) -> None:
    project.write("test_inner.py", "import everyrank.suites\ndef test_plain(): pass")
    inner = project.run("--law=state.kept", "--optimizer=SGD")
    assert inner.code == 0, inner.out
    assert "leaves out" not in inner.out
