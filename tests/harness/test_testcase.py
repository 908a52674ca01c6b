"""everyrank.testcase: names, parameters, and files run as scripts."""

from __future__ import annotations

import importlib
import unittest
from pathlib import Path
from typing import Any

import everyrank.testcase as ours
import pytest
import torch
from everyrank.testcase import skips

from tests.harness.test_adopt import by_other_imports
from tests.inner import Project

#: Where torch keeps what the names are taken from.
THEIRS = (
    "common_distributed",
    "common_utils",
    "common_fsdp",
    "common_cuda",
    "dist_utils",
    "distributed._shard.sharded_tensor",
    "distributed._tensor.common_dtensor",
    "distributed.checkpoint_utils",
    "distributed.rpc.faulty_rpc_agent_test_fixture",
    "distributed.rpc.tensorpipe_rpc_agent_test_fixture",
)

#: What older torch has, or newer; and what torch imports from elsewhere.
NOT_IN_EVERY_TORCH = {"sandcastle_skip", "sandcastle_skip_if", "make_tensor", "requires_world_size"}


def test_every_name_is_one_of_torchs() -> None:
    known: set[str] = set(NOT_IN_EVERY_TORCH)
    for module in THEIRS:
        known |= set(dir(importlib.import_module(f"torch.testing._internal.{module}")))
    assert set(ours.__all__) - known == set()


def test_the_exit_codes_of_skips_are_torchs() -> None:
    theirs = importlib.import_module("torch.testing._internal.common_distributed").TEST_SKIPS
    codes = {name: skip.exit_code for name, skip in ours.TEST_SKIPS.items()}
    assert {name: skip.exit_code for name, skip in theirs.items() if name in codes} == codes


@pytest.mark.parametrize(("gpus", "runs"), [(0, True), (1, False), (2, True)])
def test_a_test_that_may_run_on_the_cpu_needs_all_of_its_gpus_or_none(
    monkeypatch: pytest.MonkeyPatch, gpus: int, runs: bool
) -> None:
    monkeypatch.setattr(skips, "count_accelerators", lambda: gpus)
    method = skips.skip_if_lt_x_gpu(2, allow_cpu=True)(lambda self: "ran")
    if runs:
        assert method(None) == "ran"
        return
    with pytest.raises(unittest.SkipTest, match="needs 2 GPUs, found 1"):
        method(None)


def test_importing_it_does_not_import_torchs_private_modules(project: Project) -> None:
    project.write("needs.py", "import torch")  # so that a fork has it; torch itself imports some of those modules
    code = "import sys, everyrank.testcase; print([m for m in sys.modules if m.endswith(('_utils', '_distributed'))])"
    done = project.python("-c", code)
    assert done.stdout.startswith("["), done.stderr
    assert "torch.testing._internal" not in done.stdout


# --- parameters ---------------------------------------------------------------------------------------


def parametrized(names: Any) -> Any:
    """Return a class that uses these decorators."""

    class Case(names.TestCase):  # type: ignore[misc]
        seen: list[Any] = []

        @names.parametrize("x", [1, 2.5, "text", None, torch.float32])
        def test_values(self, x: Any) -> None:
            self.seen.append(x)

        @names.parametrize("a, b", [(1, 2), names.subtest((3, 4), name="three")])
        @names.parametrize("flag", [True, False])
        def test_products(self, a: int, b: int, flag: bool) -> None:
            self.seen.append((a, b, flag))

        @names.parametrize("x", [1, 2], name_fn=lambda x: f"number_{x}")
        def test_named(self, x: int) -> None:
            self.seen.append(x)

        @names.parametrize("x", [names.subtest(1, decorators=[unittest.skip("by its decorator")])])
        def test_decorated(self, x: int) -> None:
            self.seen.append(x)

        def test_plain(self) -> None:
            self.seen.append("plain")

    return names.instantiate_parametrized_tests(Case)


def test_parametrized_methods_have_torchs_names() -> None:
    theirs = importlib.import_module("torch.testing._internal.common_utils")
    names = [name for name in dir(parametrized(ours)) if name.startswith("test_")]
    assert names == [name for name in dir(parametrized(theirs)) if name.startswith("test_")]
    assert "test_products_three_flag_False" in names


def test_each_parametrized_method_gets_its_values() -> None:
    case = parametrized(ours)
    result = unittest.TestResult()
    unittest.TestLoader().loadTestsFromTestCase(case).run(result)
    assert result.wasSuccessful()
    assert [reason for _, reason in result.skipped] == ["by its decorator"]
    wanted = [1, 2.5, "text", None, torch.float32, 1, 2, "plain"]
    wanted += [(a, b, flag) for a, b in ((1, 2), (3, 4)) for flag in (True, False)]
    assert sorted(map(str, case.seen)) == sorted(map(str, wanted))


def test_values_that_do_not_fit_are_refused() -> None:
    class Case(ours.TestCase):
        @ours.parametrize("a,b", [(1, 2, 3)])
        def test_three(self, a: int, b: int) -> None: ...

    with pytest.raises(ValueError, match="3 values for the 2 names a, b"):
        ours.instantiate_parametrized_tests(Case)
    with pytest.raises(ValueError, match="empty"):
        ours.parametrize("a", [])(lambda self, a: None)


# --- as a script --------------------------------------------------------------------------------------


def test_a_file_runs_as_a_script_the_tests_that_are_named_with_pytests_options(project: Project) -> None:
    path = project.write("some_tests.py", by_other_imports())
    plain = ("-p", "no:randomly", "-p", "no:cacheprovider", "-k", "not SkipsInSetUp")
    done = project.python(str(path), *plain, "Spawned.test_fails_on_one_rank", "Calls.test_call", "SkipsInSetUp")
    assert "1 failed, 1 passed, 1 deselected" in done.stdout, done.stdout
    assert done.returncode == 1
    project.assert_nothing_left()


def test_without_ranks_the_error_shows_how_to_run_a_case(project: Project) -> None:
    path = project.write("some_tests.py", by_other_imports())
    done = project.python("-m", "unittest", f"{Path(path).stem}.Spawned.test_skips")
    assert done.returncode != 0
    assert "Spawned runs on the ranks of a world: run it with pytest" in done.stderr
