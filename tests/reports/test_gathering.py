"""How lines are gathered of reports that come late, twice or not at all; and the hooks that pass them on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from everyrank.reports.live.gather import Collected, Gathering, attach, fetch
from everyrank.reports.live.host import gpus, installed
from everyrank.reports.runfile.model import CaseLine

from tests.inner import Project
from tests.run_files import read

_ID = "test_x.py::test"


def _report(when: Any, outcome: Any = "passed", **more: Any) -> pytest.TestReport:
    return pytest.TestReport(_ID, ("test_x.py", 0, "test"), {}, outcome, more.pop("longrepr", None), when, **more)


def _gathered(*reports: pytest.TestReport) -> tuple[list[CaseLine], Gathering]:
    heard: list[CaseLine] = []
    gathering = Gathering(heard.append)
    gathering.expect(Collected({}, [_ID], [{}]))
    for report in reports:
        gathering.pytest_runtest_logreport(report)
    return heard, gathering


_WHOLE = (_report("setup"), _report("call"), _report("teardown"))
#: As pytest-xdist reports it.
_CRASH = _report("???", "failed", longrepr="worker 'gw0' crashed while running 'test_x.py::test'")


def test_a_test_that_is_run_again_has_the_line_of_its_last_attempt() -> None:
    rerun = _report("call", "rerun", longrepr="as pytest-rerunfailures reports it")
    heard, gathering = _gathered(_report("setup"), rerun, _report("teardown"), *_WHOLE)
    assert [line.outcome for line in heard] == ["pass"]
    assert not gathering.troubles


def test_a_worker_that_dies_in_a_test_is_its_crash_after_any_reports() -> None:
    heard, _ = _gathered(_report("setup"), _report("call"), _CRASH)
    assert [(line.outcome, line.phases) for line in heard] == [("crash", [])]


def test_a_worker_that_dies_after_the_last_report_of_a_test_makes_no_second_line() -> None:
    heard, gathering = _gathered(*_WHOLE, _CRASH)
    assert [line.outcome for line in heard] == ["pass"]
    assert gathering.troubles == [f"{_ID} was reported again: crash: {_CRASH.longrepr}"]


def test_tests_that_are_not_multi_rank_have_no_line() -> None:
    heard: list[CaseLine] = []
    gathering = Gathering(heard.append)
    for report in _WHOLE:
        gathering.pytest_runtest_logreport(report)
    gathering.close()
    assert heard == []


def test_a_failed_teardown_outweighs_a_good_call() -> None:
    heard, _ = _gathered(_report("setup"), _report("call"), _report("teardown", "failed", longrepr="no"))
    assert [line.outcome for line in heard] == ["error"]


def test_the_harness_result_travels_with_the_last_report_through_xdist() -> None:
    result = {"rule": "passed", "size": 4, "repeat": "pytest test_x.py::test", "worlds_up": 3, "world": 2}
    attach(result, [last := _report("teardown")])
    sent = json.loads(json.dumps(last._to_json()))
    heard, gathering = _gathered(_report("setup"), _report("call"), pytest.TestReport._from_json(sent))
    assert [(line.size, line.world, line.repeat) for line in heard] == [(4, "2", "pytest test_x.py::test")]
    assert sum(gathering.worlds_up.values()) == 3


def test_of_a_flood_of_leaks_and_outputs_some_are_kept_and_the_rest_counted() -> None:
    leaks = [{"kind": "fd", "what": f"/tmp/{number}", "ranks": [number % 2]} for number in range(60)]
    last = _report("teardown", sections=[(f"Captured stdout call, rank {rank}", "text") for rank in range(64)])
    attach({"rule": "passed", "size": 64, "repeat": "", "leaks": leaks}, [last])
    ((line,), _) = _gathered(_report("setup"), _report("call"), last)
    assert (len(line.leaks), line.leaks[-1].what) == (51, "10 more leaks left out")
    assert (len(line.output), line.output[-1].text) == (17, "48 more captured texts left out")


def test_the_output_of_ranks_that_failed_comes_first_and_is_never_left_out() -> None:
    names = [f"rank {rank}" for rank in range(62)] + ["all 64 ranks", "ranks 61-62,9", "rank 63"]
    sections = [(f"Captured stdout call, {name}", "text") for name in names]
    last = _report("teardown", sections=[*sections, ("Captured log call", "no rank is named")])
    ranks = [{"rank": 63, "outcome": "failed"}, {"rank": 9, "outcome": "lost"}]
    blame = {"ranks": [63], "rule": "failed first"}
    attach({"rule": "failed", "size": 64, "repeat": "", "ranks": ranks, "blame": blame}, [last])
    ((line,), _) = _gathered(_report("setup"), _report("call"), last)
    parts = [(part.name.partition(", ")[2], part.ranks) for part in line.output]
    assert parts[:2] == [("rank 63", [63]), ("all 64 ranks", list(range(64)))]
    assert parts[2:4] == [("rank 9", [9]), ("ranks 61-62,9", [61, 62, 9])]
    assert parts[4] == ("rank 0", [0])


def test_of_a_worker_on_another_machine_the_ids_are_known(tmp_path: Path) -> None:
    found = fetch(tmp_path / "never-written.json", [_ID])
    assert (found.ids, found.properties) == ([_ID], [{}])


def test_gpus_have_the_names_that_the_driver_gives(tmp_path: Path) -> None:
    for number, name in enumerate(["NVIDIA H100 80GB HBM3", "NVIDIA A100"]):
        folder = tmp_path / f"0000:0{number}:00.0"
        folder.mkdir()
        (folder / "information").write_text(f"Model: \t\t {name}\nIRQ:   \t\t 18\n")
    assert gpus(tmp_path) == ["NVIDIA H100 80GB HBM3", "NVIDIA A100"]
    assert gpus(tmp_path / "nothing") == []


def test_what_is_not_installed_has_no_version() -> None:
    assert installed("pytest")
    assert installed("a-package-of-no-such-name") == ""


# --- the hooks -----------------------------------------------------------------------------------------

_TESTS = """
    import pytest

    @pytest.mark.world(2)
    def test_two(world): assert world.rank

    @pytest.mark.world(2, device="tpu")
    def test_misused(): pass

    def test_of_one_process(): pass
"""

_LISTENER = """
    import json

    def note(**what):
        with open("heard.jsonl", "a") as file:
            print(json.dumps(what), file=file)

    def pytest_everyrank_collected(config, items, run):
        note(items=[item.name for item in items], run=run)

    def pytest_everyrank_result(item, result, reports):
        note(item=item.name, result=result, whens=[report.when for report in reports])
"""


def test_any_plugin_hears_of_tests_and_verdicts_as_plain_data(project: Project) -> None:
    project.write("test_inner.py", _TESTS)
    project.write("conftest.py", _LISTENER)
    project.run("-p", "no:everyrank-reports", "--world-seed=3")
    collected, two, misused = (json.loads(line) for line in (project.folder / "heard.jsonl").read_text().splitlines())
    run = {"launcher": "fork", "seed": 3, "backends": []}
    assert collected == {"items": ["test_two", "test_misused"], "run": run}
    assert (two["item"], two["result"]["rule"], two["whens"]) == ("test_two", "failed", ["setup", "call", "teardown"])
    assert [rank["outcome"] for rank in two["result"]["ranks"]] == ["failed", "passed"]
    assert misused["result"] == {
        "rule": "refused", "size": 0, "repeat": "pytest test_inner.py::test_misused --world-seed=3",
        "worlds_up": 0, "world": None, "passes_alone": False, "not_kept": "", "remarks": [], "ranks": [], "leaks": [],
        "rollcall": [], "blame": None, "mutation": None, "sweep": None,
    }  # fmt: skip


def test_reports_without_the_harness_report_nothing(project: Project) -> None:
    project.write("test_inner.py", "def test_of_one_process(): pass")
    inner = project.run("-p", "no:everyrank", "--run-file=run.jsonl")
    run_file = read(project.folder / "run.jsonl")
    assert (inner.code, run_file.cases) == (0, [])


@pytest.mark.parametrize("more", [[], ["-n", "1"]], ids=["alone", "workers"])
def test_a_run_without_multi_rank_tests_imports_nothing_for_them(project: Project, more: list[str]) -> None:
    project.write("test_inner.py", "def test_of_one_process(): pass")
    project.write(
        "conftest.py",
        """
        import sys

        def pytest_unconfigure():
            assert not {"msgspec", "torch", "everyrank.reports.live.live_run"} & set(sys.modules), sorted(sys.modules)
        """,
    )
    assert project.run(*more).code == 0


@pytest.mark.group("clusters")
def test_spawned_ranks_leave_the_run_file_alone(project: Project) -> None:
    project.write("test_inner.py", _TESTS)
    project.run("--launcher=spawn", "--run-file=run.jsonl")
    run_file = read(project.folder / "run.jsonl")
    assert run_file.outcomes == {"test_two": "fail", "test_misused": "error"}
    assert run_file.header["launcher"] == "spawn"
