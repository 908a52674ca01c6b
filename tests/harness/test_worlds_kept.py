"""A world is kept after changes that are no test's fault, and a run states why a world was not kept."""

from __future__ import annotations

import pytest
from everyrank.reports.live.summary import not_kept
from everyrank.reports.live.tally import Tally
from everyrank.reports.runfile.model import CaseLine

from tests.engines import one_run
from tests.inner import Inner, Project
from tests.run_files import read

#: A rank's pid travels as a property of its test; each test here is followed by one that must know the same, or not.
SOURCE = """
    import os, unittest.mock
    import pytest

    @pytest.fixture(autouse=True)
    def pid(record_property):
        record_property("pid", os.getpid())

    def test_takes_an_optimizer(process_group):
        import torch
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

    def test_after_the_optimizer(process_group):
        assert "TORCHINDUCTOR_CACHE_DIR" in os.environ

    def test_sets_a_variable(process_group):
        os.environ["LEFT_BEHIND"] = "1"

    def test_after_the_variable(process_group):
        assert "LEFT_BEHIND" not in os.environ

    def test_sets_a_librarys_variable_itself(process_group):
        os.environ.update(TRITON_HOME="/nowhere")

    def test_after_the_librarys_variable(process_group):
        assert "TRITON_HOME" not in os.environ

    def test_imports_a_module_of_its_own_that_sets_one(process_group):
        import of_the_project

    def test_after_the_module(process_group):
        assert "SET_BY_THE_PROJECT" not in os.environ

    def test_is_tidy(process_group, monkeypatch):
        monkeypatch.setenv("LEFT_BEHIND", "1")
        with unittest.mock.patch.dict(os.environ, TRITON_HOME="/nowhere"):
            pass

    def test_after_the_tidy(process_group):
        pass

    def test_fails(process_group):
        assert False

    @pytest.mark.world(2, fresh=True)
    def test_asks_for_its_own(process_group):
        pass
"""

LAZY = """
    def test_imports_torch_itself(world):
        import torch

    def test_imports_torch_and_changes_it(world):
        import torch
        torch.set_default_dtype(torch.float64)
"""


inner = one_run(
    {"test_inner.py": SOURCE, "of_the_project.py": "import os\nos.environ['SET_BY_THE_PROJECT'] = '1'\n"},
    *("-v", "--run-file=run.jsonl"),
)


@pytest.fixture(scope="module")
def why(inner: Inner) -> dict[str, str]:
    """Return what the run file states about each test's world."""
    return {
        case["id"].partition("::")[2]: case.get("not_kept", "") for case in read(inner.folder / "run.jsonl").cases
    }


def shares(inner: Inner, test: str, other: str) -> bool:
    return inner[test].properties["pid"] == inner[other].properties["pid"]


def test_a_variable_that_the_import_of_an_optimizer_sets_does_not_end_the_world(
    inner: Inner, why: dict[str, str]
) -> None:
    assert inner["test_after_the_optimizer"].outcome == "passed"
    assert shares(inner, "test_takes_an_optimizer", "test_after_the_optimizer")
    assert why["test_takes_an_optimizer"] == ""


@pytest.mark.parametrize(
    ("test", "after"),
    [
        ("test_sets_a_variable", "test_after_the_variable"),
        ("test_sets_a_librarys_variable_itself", "test_after_the_librarys_variable"),
        ("test_imports_a_module_of_its_own_that_sets_one", "test_after_the_module"),
    ],
)
def test_a_variable_that_a_test_sets_itself_ends_its_world(inner: Inner, test: str, after: str) -> None:
    assert inner[after].outcome == "passed"
    assert not shares(inner, test, after)


def test_a_change_that_a_test_reverts_does_not_end_its_world(inner: Inner, why: dict[str, str]) -> None:
    assert shares(inner, "test_is_tidy", "test_after_the_tidy")
    assert why["test_is_tidy"] == ""


def test_the_run_file_states_why_a_world_was_not_kept(why: dict[str, str]) -> None:
    kind = "ranks 0,1 left a variable of the environment changed"
    assert why["test_sets_a_variable"] == f"{kind}: LEFT_BEHIND='1', was not set, set at test_inner.py:20"
    assert why["test_fails"] == "the test failed"
    assert why["test_asks_for_its_own"] == ""


def test_with_v_the_summary_states_it_for_green_tests_too(inner: Inner, project: Project) -> None:
    _, heading, summary = inner.out.partition("everyrank: worlds that were not kept for the next test")
    assert heading
    assert "test_inner.py::test_sets_a_variable: ranks 0,1 left a variable of the environment changed" in summary
    assert "test_fails: the test failed" not in summary
    project.write("test_quiet.py", "import os\ndef test_sets_one(world):\n    os.environ['LEFT_BEHIND'] = '1'\n")
    assert heading not in project.run().out


def test_worlds_that_ended_for_one_reason_are_one_line_of_the_summary() -> None:
    tally = Tally()
    for number in range(40):
        tally.add(CaseLine(id=f"test_x.py::test[{number}]", outcome="pass", not_kept="rank 0 ran an RPC agent"))
    assert not_kept(tally) == ["test_x.py::test[0] and 39 more: rank 0 ran an RPC agent"]


def test_a_library_that_a_test_is_the_first_to_import_is_no_leak(project: Project) -> None:
    project.write("test_lazy.py", LAZY)
    inner = project.run("--fresh-worlds")
    assert "leaks" not in inner["test_imports_torch_itself"].properties
    assert "default dtype" in inner["test_imports_torch_and_changes_it"].properties["leaks"]


def test_it_ends_no_world_either(project: Project) -> None:
    project.write("test_lazy.py", LAZY)
    project.run("-k", "itself", "--run-file", "run.jsonl")
    assert [case.get("not_kept", "") for case in read(project.folder / "run.jsonl").cases] == [""]


XFAILS = """
    import os
    import pytest
    from everyrank.rank.context import current_rank

    def test_all_ranks_state_it(process_group):
        current_rank().keep_if_xfailed()
        pytest.xfail("known")

    def test_no_rank_states_it(process_group):
        pytest.xfail("known")

    def test_one_rank_states_it(world, process_group):
        if world.rank == 0:
            current_rank().keep_if_xfailed()
        pytest.xfail("known")

    def test_the_one_that_xfails_states_it(world, process_group):
        if world.rank == 0:
            current_rank().keep_if_xfailed()
            pytest.xfail("known")

    def test_it_leaves_a_variable(process_group):
        current_rank().keep_if_xfailed()
        os.environ["LEFT_BEHIND"] = "1"
        pytest.xfail("known")

    def test_one_rank_has_one_collective_more(world, process_group):
        import torch
        current_rank().keep_if_xfailed()
        if world.rank == 0:
            torch.distributed.all_reduce(torch.ones(()), async_op=True)
        pytest.xfail("known")

    def test_it_fails(process_group):
        current_rank().keep_if_xfailed()
        assert False
"""


def test_an_xfail_ends_the_world_unless_all_ranks_that_xfail_state_that_it_need_not(project: Project) -> None:
    project.write("test_xfails.py", XFAILS)
    project.run("-p", "no:randomly", "--run-file", "run.jsonl")
    why = {
        case["id"].partition("::")[2]: case.get("not_kept", "") for case in read(project.folder / "run.jsonl").cases
    }
    variable = "ranks 0,1 left a variable of the environment changed: LEFT_BEHIND='1'"
    assert why.pop("test_it_leaves_a_variable").startswith(variable)
    assert why == {
        "test_all_ranks_state_it": "",
        "test_no_rank_states_it": "the test xfailed",
        "test_one_rank_states_it": "the test xfailed",
        "test_the_one_that_xfails_states_it": "",
        "test_one_rank_has_one_collective_more": "the ranks did not all issue the same number of collectives",
        "test_it_fails": "the test failed",
    }
