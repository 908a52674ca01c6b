"""One file in torch's style, unedited under --adopt, and with other import lines on everyrank.testcase."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from tests.engines import one_run
from tests.inner import Inner, Project

SAMPLE = Path(__file__).parents[1] / "samples" / "torch_style.py"

#: test -> its outcome. Those marked # are green under torch's own harness, which checks only the first rank.
OUTCOMES = {
    "Spawned::test_all_reduce": "passed",
    "Spawned::test_what_a_rank_has": "passed",
    "Spawned::test_fails_on_one_rank": "failed",
    "Spawned::test_dies_on_one_rank": "failed",  #
    "Spawned::test_exits_on_one_rank": "failed",  #
    "Spawned::test_all_exit_by_code_0": "passed",
    "Spawned::test_skips": "skipped",
    "Spawned::test_skips_by_code": "skipped",
    "Spawned::test_skips_on_one_rank": "failed",  # skipped
    "Spawned::test_needs_gpus": "skipped",
    "Spawned::test_skipped_by_unittest": "skipped",
    "Spawned::test_expected_failure": "xfailed",
    "NeverStarts::test_nothing_runs": "failed",  #
    "SkipsInSetUp::test_skipped": "skipped",
    "FailsInSetUp::test_not_reached": "failed",
    "TearsDownLast::test_all_end": "passed",
    "TearsDownLast::test_all_skip": "skipped",
    "WaitsForASkip::test_waits_for_ever": "failed",
    "LeavesInRun::test_has_a_group": "passed",
    "LeavesInRun::test_fails": "failed",
    "Base::test_gathers_size_1_float32": "passed",
    "Base::test_gathers_size_1_int64": "passed",
    "Base::test_gathers_five_float32": "passed",
    "Base::test_gathers_five_int64": "passed",
    "Base::test_needs_nccl": "skipped",
    "Continuous::test_1_first": "passed",
    "Continuous::test_2_in_the_same_process": "passed",
    "Continuous::test_3_fails": "failed",
    "Continuous::test_4_after_a_failure": "passed",  # skipped
    "OnMesh::test_mesh": "passed",
    "Sharded::test_comms": "passed",
    "Calls::test_call": "passed",
    "Calls::test_group_of_its_own": "passed",
}

#: Tests whose outcome depends on the machine.
NEEDS = {"Spawned::test_needs_gpus", "Base::test_needs_nccl"}


#: What everyrank.testcase offers under torch's names: each class and each decorator of the sample once.
IMPORTED = (
    *("Spawned::test_fails_on_one_rank", "Spawned::test_exits_on_one_rank", "Spawned::test_needs_gpus"),
    *("NeverStarts::test_nothing_runs", "FailsInSetUp::test_not_reached", "TearsDownLast::test_all_end"),
    *("Base::test_gathers_five_float32", "Base::test_needs_nccl", "Continuous::test_1_first"),
    *("Continuous::test_2_in_the_same_process", "OnMesh::test_mesh", "Sharded::test_comms", "Calls::test_call"),
)
FILES = {"test_unedited.py": OUTCOMES, "test_imports.py": {test: OUTCOMES[test] for test in IMPORTED}}


def by_other_imports(text: str = "") -> str:
    """Return the sample, or another text, with only its import lines changed."""
    torchs = r"from torch\.testing\._internal[\w.]* import"
    return re.sub(torchs, "from everyrank.testcase import", text or SAMPLE.read_text())


inner = one_run(
    {"test_unedited.py": SAMPLE.read_text(), "test_imports.py": by_other_imports()},
    *("--adopt", "test_unedited.py"),
    *(f"test_imports.py::{test}" for test in IMPORTED),
)


@pytest.mark.parametrize("file", FILES)
def test_a_test_has_its_outcome(inner: Inner, file: str) -> None:
    results = {nodeid.split("::", 1)[1]: result for nodeid, result in inner.tests.items() if nodeid.startswith(file)}
    assert results.keys() == FILES[file].keys()
    others = {test: result for test, result in results.items() if result.outcome != OUTCOMES[test]}
    assert {test: result.text for test, result in others.items() if test not in NEEDS} == {}
    assert {result.outcome for result in others.values()} <= {"passed"}


def test_the_run_reports_how_many_tests_it_adopted(inner: Inner) -> None:
    assert f"everyrank: adopted {len(OUTCOMES)} tests of torch's classes" in inner.out


@pytest.mark.parametrize(
    ("test", "texts"),
    [
        (
            "Spawned::test_dies_on_one_rank",
            ["rank 1 of 3 left without a record (exit code 3) in call", "ranks 0,2: passed"],
        ),
        ("Spawned::test_exits_on_one_rank", ["rank 1 of 3 failed first", "SystemExit: 0"]),
        ("Spawned::test_fails_on_one_rank", ["self.assertNotEqual(self.rank, 1)", "rank 1 of 3 failed first"]),
        ("Spawned::test_skips_on_one_rank", ["ranks disagree: only some of them skipped", "rank 0 skipped: "]),
        ("WaitsForASkip::test_waits_for_ever", ["rank 1 skipped: rank 0 is waiting", "rank 0: waiting in barrier"]),
        ("NeverStarts::test_nothing_runs", ["setUp started no processes"]),
        ("FailsInSetUp::test_not_reached", ["ValueError: setUp fails", "rank 0 of 4 failed first"]),
        ("Spawned::test_skips", ["on all ranks"]),
        ("SkipsInSetUp::test_skipped", ["setUp says so"]),
    ],
)
def test_the_message_names_the_rank_and_the_cause(inner: Inner, test: str, texts: list[str]) -> None:
    text = inner.tests[f"test_unedited.py::{test}"].text
    assert [wanted for wanted in texts if wanted not in text] == []


def test_no_temporary_file_is_left(inner: Inner, module_project: Project) -> None:
    others = ("pytest-of-", "torchinductor_")  # pytest's own folder, and a cache that torch creates at import
    assert [path.name for path in module_project.temp.iterdir() if not path.name.startswith(others)] == []


def test_only_tests_that_fail_leave_something_behind(inner: Inner) -> None:
    leaking = {warning["nodeid"] for warning in inner.warnings if warning["warning"] == "LeakWarning"}
    assert {nodeid.split("::", 1)[1] for nodeid in leaking} <= {"LeavesInRun::test_fails"}


def test_the_ini_key_adopts_too(project: Project) -> None:
    project.write("pytest.ini", "[pytest]\neveryrank_adopt = true\n")
    project.write("test_unedited.py", SAMPLE.read_text())
    inner = project.run("-k", "test_all_reduce")
    assert inner.outcomes() == {"test_all_reduce": "passed"}
    assert "adopted 1 test of torch's classes" in inner.out


@pytest.mark.group("clusters")
def test_clean_interpreters_run_adopted_tests_too(project: Project) -> None:
    project.write("test_unedited.py", SAMPLE.read_text())
    inner = project.run("--adopt", "--launcher=spawn", "-k", "test_all_reduce or test_call")
    assert inner.outcomes() == {"test_all_reduce": "passed", "test_call": "passed"}


def test_without_the_option_nothing_is_adopted(project: Project) -> None:
    project.write("test_unedited.py", SAMPLE.read_text())
    inner = project.run("--collect-only")
    assert "adopted" not in inner.out
    assert f"{len(OUTCOMES)} tests collected" in inner.out


STUCK = """
    import torch.distributed as dist
    from torch.testing._internal.common_distributed import MultiProcessTestCase

    class Stuck(MultiProcessTestCase):
        @property
        def world_size(self):
            return 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def test_stuck(self):
            dist.FileStore(self.file_name, 2).wait(["what nobody sets"])
"""


def test_the_deadline_is_that_of_the_test_case(project: Project) -> None:
    # The variable is not in this process, or the run would be no fork. A fork has torch's module: it has read it.
    project.write("conftest.py", 'import os\nos.environ["DISTRIBUTED_TESTS_DEFAULT_TIMEOUT"] = "2"\n')
    override = "import torch.testing._internal.common_distributed as c\nc.TIMEOUT_OVERRIDE['test_stuck'] = 2"
    project.write("test_unedited.py", f"{textwrap.dedent(STUCK)}\n{override}\n")
    project.write("test_imports.py", by_other_imports(STUCK))
    inner = project.run("--adopt")
    assert set(inner.outcomes().values()) == {"failed"}
    unedited, imports = (inner.tests[f"{file}::Stuck::test_stuck"].text for file in FILES)
    assert "the world of 2 missed its deadline of 2 s (torch's get_timeout())" in unedited
    assert "the world of 2 missed its deadline of 2 s (get_timeout())" in imports


def test_workers_of_xdist_adopt_too(project: Project) -> None:
    project.write("test_unedited.py", SAMPLE.read_text())
    inner = project.run("--adopt", "-n", "2", "-k", "OnMesh or Continuous")
    wanted = {name: outcome for name, outcome in OUTCOMES.items() if name.startswith(("OnMesh", "Continuous"))}
    # A class whose tests run in several workers has a world in each.
    del wanted["Continuous::test_2_in_the_same_process"]
    found = {nodeid.split("::", 1)[1]: result.outcome for nodeid, result in inner.tests.items()}
    assert {name: found[name] for name in wanted} == wanted
