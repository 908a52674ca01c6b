"""The kill matrix is perfect only if every rogue is killed by the laws that it names, and by no other."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from everyrank.fixtures.rogues import Rogue
from everyrank.suites.engine.contract import contract as find_contract
from everyrank.suites.engine.contract import contracts
from everyrank.suites.kill import first_kill, matrix
from everyrank.suites.kill.first_kill import FirstKill
from everyrank.suites.kill.matrix import EXEMPLAR, NOTHING, Matrix, tried
from everyrank.suites.kill.sample import ALL, PARTS, Sample, as_environment, by_commit, parsed, requested
from everyrank.suites.options import SHARED

from tests.inner import Project

LAWS = ("a", "b")
PERFECT = {
    (EXEMPLAR, "a"): "pass",
    (EXEMPLAR, "b"): "pass",
    (NOTHING, "a"): "fail",
    (NOTHING, "b"): "fail",
    ("one", "a"): "fail",
    ("one", "b"): "pass",
    ("two", "a"): "pass",
    ("two", "b"): "fail",
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A contract of two laws, with a rogue for each."""
    monkeypatch.setattr(
        matrix, "rogues", lambda name: (Rogue("one", None, ("a",), ""), Rogue("two", None, ("b",), ""))
    )
    monkeypatch.setattr(Matrix, "laws", LAWS)


def _faults(**changed: str) -> list[str]:
    cells = {(row, f"small/{law}[ws2]"): end for (row, law), end in PERFECT.items()}
    for cell, end in changed.items():
        row, law = cell.split("_")
        row = {"exemplar": EXEMPLAR, "nothing": NOTHING}.get(row, row)
        cells[row, f"small/{law}[ws2]"] = end
    return Matrix("small", cells).faults


def test_a_perfect_matrix_has_no_fault() -> None:
    assert _faults() == []


def test_a_rogue_that_survives_is_a_fault() -> None:
    assert _faults(one_a="pass") == ["one survives a", "no rogue is killed by a"]


def test_a_rogue_that_is_killed_by_more_than_it_names_is_a_fault() -> None:
    assert _faults(one_b="fail") == ["one is killed by b too"]


@pytest.mark.parametrize("end", ["error", "timeout", "crash", "not-run"])
def test_another_end_is_no_kill(end: str) -> None:
    assert _faults(one_a=end) == [
        "one survives a",
        f"one ends a by {end}, which is no kill",
        "no rogue is killed by a",
    ]


def test_an_exemplar_that_fails_is_a_fault() -> None:
    assert _faults(exemplar_b="fail") == ["the exemplar fails b"]


def test_a_law_that_doing_nothing_passes_is_a_fault() -> None:
    assert _faults(nothing_a="pass") == ["doing nothing passes a"]


def test_a_case_that_never_ended_is_no_kill() -> None:
    cells = {(row, f"small/{law}[ws2]"): end for (row, law), end in PERFECT.items() if (row, law) != ("one", "a")}
    assert Matrix("small", cells).faults == ["one survives a", "no rogue is killed by a"]


@pytest.mark.parametrize(
    ("row", "law", "fault"),
    [
        (EXEMPLAR, "a", "(exemplar) was not tried on a"),
        (NOTHING, "a", "doing nothing passes a"),
        ("one", "b", "one was not tried on b"),
    ],
)
def test_silence_is_no_pass(row: str, law: str, fault: str) -> None:
    cells = {(row, f"small/{law}[ws2]"): end for (row, law), end in PERFECT.items()}
    del cells[row, f"small/{law}[ws2]"]
    assert Matrix("small", cells).faults == [fault]


# --- a sample of the laws that a rogue does not name -------------------------------------------------


def test_the_parts_of_the_sample_have_each_pair_once_and_each_of_them_the_laws_that_a_rogue_names() -> None:
    pairs = [(f"rogue-{rogue}", f"law-{law}") for rogue in range(20) for law in range(20)]
    parts = [Sample(number, PARTS) for number in range(1, PARTS + 1)]
    assert all(sum(part.has(*pair, ()) for part in parts) == 1 for pair in pairs)
    assert all(any(part.has(*pair, ()) for pair in pairs) for part in parts)
    assert all(part.has(rogue, law, (law,)) for part in parts for rogue, law in pairs)


def test_another_commit_has_another_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert by_commit().reason == ", since this folder has no commits"
    git = ["git", "-c", "user.name=nobody", "-c", "user.email=nobody@localhost"]
    subprocess.run(["git", "init", "--quiet"], check=True)
    parts = []
    for _ in range(2):
        subprocess.run([*git, "commit", "--quiet", "--allow-empty", "--message=more"], check=True)
        parts.append(by_commit())
    assert [part.number for part in parts] == [2, 3]
    assert "by the number of commits, 2" in str(parts[1])


def test_the_sample_reaches_the_processes_of_the_run_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for sample in (Sample(3, PARTS, ", by the number of commits, 2"), parsed("all"), parsed("2/5")):
        for name, value in as_environment(sample).items():
            monkeypatch.setenv(name, value)
        assert requested() == sample


@pytest.mark.parametrize("text", ["", "none", "0/12", "13/12", "3", "1/2/3"])
def test_a_part_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--others is all, or one of several parts such as 3/12"):
        parsed(text)


def test_silence_of_a_law_that_is_not_in_the_sample_is_no_fault_and_the_table_names_the_part() -> None:
    part = next(Sample(n, 2) for n in (1, 2) if not Sample(n, 2).has("one", "b", ()))
    cells = {(row, f"small/{law}[ws2]"): end for (row, law), end in PERFECT.items() if (row, law) != ("one", "b")}
    found = Matrix("small", cells, part)
    assert [fault for fault in found.faults if fault.startswith("one ")] == []
    assert f"on part {part.number} of 2 of all others; --others=all tries all" in found.text()
    other = Sample(3 - part.number, 2)
    assert "one was not tried on b" in Matrix("small", cells, other).faults


def test_an_end_that_is_no_kill_is_shown_whole_and_the_faults_come_last(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hang that comes once in a thousand cases must not need another to be understood."""
    monkeypatch.setenv("EVERYRANK_CONTRACTS", "rpc-optimizer")
    project.write(
        "test_inner.py",
        """
        import pytest
        import everyrank.suites

        @pytest.fixture
        def case(record_property, request):
            record_property("subject", "skips-the-caller")
            record_property("case", f"rpc-optimizer/parity.one-step[{request.param}-ws2]")
            record_property("outcome", request.param)
            if request.param == "error":
                raise RuntimeError("ended by error")
            return request.param

        @pytest.mark.parametrize("case", ["fail", "timeout", "error"], indirect=True)
        def test_a_rogue(case):
            raise RuntimeError(f"ended by {case}")
        """,
    )
    quiet = ["--no-summary", "--tb=no", "-q", "-p", "everyrank.suites.kill.plugin"]
    done = project.run(*quiet)
    assert done.code == 1
    assert "ended by fail" not in done.out
    pytest.LineMatcher(done.out.splitlines()).fnmatch_lines(
        [
            "skips-the-caller * !*",
            "*RuntimeError: ended by error",
            "*RuntimeError: ended by timeout",
            "FAULT: rpc-optimizer: skips-the-caller ends parity.one-step by error, which is no kill",
            "FAULT: rpc-optimizer: skips-the-caller ends parity.one-step by timeout, which is no kill",
            "FAULT: rpc-optimizer: no rogue is killed by errors.arguments",
            "2 failed, 1 error*",
        ]
    )


def test_a_failure_of_the_ranks_together_is_shown_though_the_case_has_an_outcome_that_is_none(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One rank skips and the others pass: pytest counts a failure, so the run is not perfect without a word of it."""
    monkeypatch.setenv("EVERYRANK_CONTRACTS", "")
    project.write(
        "test_inner.py",
        """
        import everyrank.suites

        def test_kill(record_property):
            record_property("outcome", "not-applicable")
            raise RuntimeError("ranks disagree")
        """,
    )
    done = project.run("--no-summary", "--tb=no", "-q", "-p", "everyrank.suites.kill.plugin")
    assert done.code == 1
    assert "RuntimeError: ranks disagree" in done.out


def test_a_run_without_a_case_is_not_perfect(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERYRANK_CONTRACTS", "rpc-optimizer")
    project.write("test_inner.py", "import everyrank.suites\ndef test_nothing(): pass")
    done = project.run("-p", "everyrank.suites.kill.plugin")
    assert done.code == 1
    assert done.outcomes() == {"test_nothing": "passed"}


@pytest.mark.parametrize("contract", contracts())
def test_a_rogue_states_what_it_breaks_and_what_it_is_modelled_on(contract: str) -> None:
    found = find_contract(contract).part("rogues")
    assert len({rogue.name for rogue in found}) == len(found)
    assert all(rogue.breaks and rogue.model for rogue in found)
    assert len({rogue.build for rogue in found}) == len(found)


def test_beside_the_tests_its_cases_go_to_all_workers(project: Project) -> None:
    """pytest reads tests/conftest.py for whatever runs beside it, and that file sends a module to one worker."""
    project.write("suites.py", "import everyrank.suites\n")  # what the run will import
    command = ["-m", "pytest", "--pyargs", "everyrank.suites.kill.cases", "-n2", "-v"]
    done = project.python(
        *command,
        "-k",
        "exemplar and errors.arguments",
        "-p",
        "no:cacheprovider",
        folder=Path(__file__).parents[2],
        environment={**project.environment(), "EVERYRANK_CONTRACTS": "rpc-optimizer"},
    )
    assert done.returncode == 0, done.stdout
    assert set(re.findall(r"^\[(gw\d)\].* PASSED", done.stdout, re.M)) == {"gw0", "gw1"}, done.stdout


@pytest.mark.parametrize(("others", "first_alone"), [("1/12", True), ("all", False)])
def test_in_a_sample_the_first_kill_of_each_contract_is_enough(
    project: Project, others: str, first_alone: bool
) -> None:
    """Doing nothing fails every case of a law that two contracts have; in a whole matrix all are tried."""
    done = project.python(
        *["-m", "everyrank", "kill-matrix", "--contract=rpc-optimizer", "--contract=parameter-server"],
        *["--others", others, "-vv", "-n0", "-p", "no:cacheprovider", "-k", "nothing and wait and not accepts"],
        folder=Path(__file__).parents[2],
        environment=project.environment(),
    )
    ends = re.findall(r"test_kill\[\(nothing\)/([\w-]+)/wait\[\S+ (\w+)", done.stdout)
    for contract in ("rpc-optimizer", "parameter-server"):
        mine = [end for name, end in ends if name == contract]
        assert mine[:1] == ["XFAIL"], done.stdout
        assert mine[1:] == ["SKIPPED" if first_alone else "XFAIL"] * (len(mine) - 1), done.stdout
    assert len(ends) > 2, done.stdout


# --- the first kill ----------------------------------------------------------------------------------


@pytest.fixture
def crossed_rogue(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a rogue of a real contract, that crossings kill."""
    monkeypatch.undo()
    return next(rogue.name for rogue in matrix.rogues("rpc-optimizer") if "crossings" in rogue.breaks)


def _items(rogue: str) -> list[pytest.Item]:
    """Items with the core cases of a rogue's crossings, as a collection has them."""
    table = [case for case in tried("rpc-optimizer", ALL) if (case.subject.name, case.law.id) == (rogue, "crossings")]
    assert len(table) > 2
    marked = [SimpleNamespace(callspec=SimpleNamespace(params={"case": case}), marks=[]) for case in table]
    for item in marked:
        item.add_marker = lambda mark, append, marks=item.marks: marks.append(mark.name)
    return cast("list[pytest.Item]", marked)


def _skips(plugin: FirstKill, item: pytest.Item) -> bool:
    protocol = plugin.pytest_runtest_protocol(item)
    next(protocol)
    with pytest.raises(StopIteration):
        protocol.send(None)
    return bool(item.marks)  # type: ignore[attr-defined]


@pytest.mark.parametrize("shared", [False, True])
def test_workers_know_the_first_kills_of_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: bool, crossed_rogue: str
) -> None:
    config = SimpleNamespace(getoption=lambda name, default: str(tmp_path) if shared and name == SHARED else default)
    monkeypatch.setattr(first_kill, "KILLERS", tmp_path / "killers.toml")
    first_kill.write({})
    mine, other = FirstKill(config), FirstKill(config)  # type: ignore[arg-type]
    first, second, third = _items(crossed_rogue)[:3]
    assert not _skips(mine, first)
    mine.pytest_everyrank_result(first, [SimpleNamespace(user_properties=[("outcome", "fail")])])  # type: ignore[list-item]
    assert _skips(mine, second)
    assert _skips(other, third) == shared


def test_what_killed_a_rogue_is_tried_first_and_written_anew_if_another_case_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crossed_rogue: str
) -> None:
    monkeypatch.setattr(first_kill, "KILLERS", tmp_path / "killers.toml")
    *others, last = _items(crossed_rogue)
    case = last.callspec.params["case"].id  # type: ignore[attr-defined]
    first_kill.write({"rpc-optimizer": {"gone": "a", "untried": "b", crossed_rogue: "c"}, "trainer": {"kept": "d"}})
    kills = {("rpc-optimizer", crossed_rogue): {case}}
    first_kill.write(first_kill.updated(kills, {"rpc-optimizer": {"untried", crossed_rogue}}))
    killers = first_kill.read()
    assert killers == {"rpc-optimizer": {"untried": "b", crossed_rogue: case}, "trainer": {"kept": "d"}}
    items = [*others, last]
    plugin = FirstKill(SimpleNamespace(getoption=lambda *_: None))  # type: ignore[arg-type]
    plugin.pytest_collection_modifyitems(items)
    assert items == [last, *others]
    plugin.pytest_everyrank_result(others[0], [SimpleNamespace(user_properties=[("outcome", "fail")])])  # type: ignore[list-item]
    assert [_skips(plugin, item) for item in (others[1], last)] == [True, False]


def test_a_project_offers_a_table_of_its_own_in_its_folder_alone(project: Project) -> None:
    project.write("pyproject.toml", '[tool.everyrank.kill_tables]\nown = "rogues_of_mine:Own"')
    project.write(
        "rogues_of_mine.py",
        """
        class Own:
            contract, faults = "own", []

            def __init__(self, sample):
                self.ended = []

            def pytest_runtest_logreport(self, report):
                self.ended += [report.nodeid] * (report.when == "call")

            def text(self):
                return f"tried {self.ended}"

        def test_rogue():
            pass
        """,
    )
    done = project.python("-m", "everyrank", "kill-matrix", "--contract=own")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tried ['rogues_of_mine.py::test_rogue']" in done.stdout
    (project.folder / "pyproject.toml").unlink()
    assert "invalid choice: 'own'" in project.python("-m", "everyrank", "kill-matrix", "--contract=own").stderr
