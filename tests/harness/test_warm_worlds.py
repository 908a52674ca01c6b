"""Warm worlds: a world is kept as long as every test leaves it as it found it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.inner import Inner, Project

CONFTEST = """
    import json, os, sys
    import pytest

    @pytest.fixture(autouse=True)
    def record_facts(request, world):
        import torch.distributed as dist
        yield
        group = id(dist.group.WORLD) if dist.is_available() and dist.is_initialized() else None
        line = {"test": request.node.name, "rank": world.rank, "pid": os.getpid(), "group": group, "seed": world.seed}
        with open(os.path.join(os.environ["PYTHONPATH"], "seen.jsonl"), "a") as file:
            file.write(json.dumps(line) + "\\n")
"""

#: What a test does -> the body that does it, on two ranks. Each is followed by a test that must not notice.
DIRT = {
    "fails": "assert world.rank == 1",
    "fails_on_both_ranks": "assert False",
    "dies": "if world.rank: os.kill(os.getpid(), signal.SIGKILL)",
    "times_out": "threading.Event().wait()",
    "leaks_a_thread": "threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "leaks_a_child": "subprocess.Popen(['sleep', '1000'], start_new_session=True)",
    "changes_the_environment": "os.environ['LEFT_BEHIND'] = '1'",
    "drops_a_variable": "os.environ.pop('EVERYRANK_LEASES')",
    "changes_the_working_directory": "os.chdir('/')",
    "changes_the_default_dtype": "torch.set_default_dtype(torch.float64)",
    "turns_gradients_off": "torch._C._set_grad_enabled(False)",
    "asks_for_deterministic_algorithms": "torch.use_deterministic_algorithms(True)",
    "changes_the_number_of_threads": "torch.set_num_threads(2)",
    "handles_a_signal": "signal.signal(signal.SIGTERM, lambda *_: None)",
    "leaves_a_subgroup": "dist.new_group([0, 1])",
    "destroys_the_group": "dist.destroy_process_group()",
    "replaces_the_group": "dist.destroy_process_group(); "
    "dist.init_process_group('gloo', init_method=world.init_method, rank=world.rank, world_size=2)",
    "reduces_on_one_rank_only": "work = dist.all_reduce(torch.ones(1), async_op=True) if world.rank else None",
    "receives_in_vain": "work = dist.irecv(torch.ones(1), 0) if world.rank else None",
    "changes_one_rank_only": "if world.rank: os.environ['LEFT_BEHIND'] = '1'",
}

FAILING = {"fails", "fails_on_both_ranks", "dies", "times_out"}


@pytest.fixture(scope="module")
def inner(module_project: Project) -> Inner:
    module_project.write("conftest.py", CONFTEST)
    imports = "import os, signal, subprocess, threading\nimport pytest, torch\nimport torch.distributed as dist\n"
    clean = "    total = torch.ones(2)\n    dist.all_reduce(total)\n    assert total.eq(2).all()\n"
    tests = [imports]
    for name, body in DIRT.items():
        mark = "@pytest.mark.world(2, timeout=0.5)\n" if name == "times_out" else ""
        tests.append(f"def test_before_{name}(process_group):\n{clean}")
        tests.append(f"{mark}def test_{name}(process_group, world):\n    {body}\n")
        tests.append(f"def test_after_{name}(process_group):\n{clean}")
    module_project.write("test_dirt.py", "\n\n".join(tests))
    module_project.write(
        "test_clean.py",
        """
        import os, sys
        import pytest, torch
        import torch.distributed as dist

        @pytest.mark.parametrize("number", range(4))
        def test_reduces(process_group, number):
            total = torch.ones(3)
            dist.all_reduce(total)
            assert total.eq(2).all()

        def test_needs_no_group(world):
            assert not dist.is_initialized()

        def test_opens_its_own(world):
            dist.init_process_group("gloo", init_method=world.init_method, rank=world.rank, world_size=world.size)
            dist.barrier()
            dist.destroy_process_group()

        def test_opens_its_own_again(world):
            dist.init_process_group("gloo", init_method=world.init_method, rank=world.rank, world_size=world.size)
            dist.barrier()
            dist.destroy_process_group()

        def test_shares_the_group_again(process_group):
            dist.barrier()

        @pytest.mark.world(2, fresh=True)
        def test_fresh(process_group):
            dist.barrier()

        @pytest.mark.world(2, fresh=True)
        def test_fresh_again(process_group):
            dist.barrier()

        def test_after_fresh(process_group):
            dist.barrier()

        @pytest.mark.world(3)
        def test_another_size(process_group):
            assert dist.get_world_size() == 3

        def test_skipped(process_group):
            pytest.skip("on all ranks")

        def test_after_skipped(process_group):
            dist.barrier()
        """,
    )
    return module_project.run()


def seen(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return what the ranks noted, by test, in the order of the ranks."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in (folder / "seen.jsonl").read_text().splitlines():
        data = json.loads(line)
        found.setdefault(data["test"], []).append(data)
    return {test: sorted(lines, key=lambda line: line["rank"]) for test, lines in found.items()}


def pids(inner: Inner, test: str) -> set[int]:
    return {line["pid"] for line in seen(inner.folder)[test]}


def shares(inner: Inner, test: str, other_test: str) -> bool:
    """Return whether two tests ran in the same processes; either all are the same or none."""
    first, second = pids(inner, test), pids(inner, other_test)
    assert first == second or not first & second
    return first == second


def test_clean_tests_share_processes_and_group(inner: Inner) -> None:
    noted = [seen(inner.folder)[f"test_reduces[{number}]"] for number in range(4)]
    worlds = {tuple((line["pid"], line["group"]) for line in lines) for lines in noted}
    assert len(worlds) == 1
    assert None not in {line["group"] for line in noted[0]}


def test_the_group_stays_while_other_worlds_run(inner: Inner) -> None:
    assert shares(inner, "test_reduces[3]", "test_shares_the_group_again")


def test_tests_without_a_group_share_no_world_with_tests_that_have_a_group(inner: Inner) -> None:
    assert inner["test_needs_no_group"].outcome == "passed"
    assert not shares(inner, "test_reduces[3]", "test_needs_no_group")
    assert not shares(inner, "test_reduces[3]", "test_opens_its_own")


def test_tests_that_open_and_destroy_their_own_group_share_a_world(inner: Inner) -> None:
    assert inner["test_opens_its_own_again"].outcome == "passed"
    assert shares(inner, "test_needs_no_group", "test_opens_its_own")
    assert shares(inner, "test_opens_its_own", "test_opens_its_own_again")


def test_fresh_on_the_mark_asks_for_new_processes(inner: Inner) -> None:
    assert not shares(inner, "test_shares_the_group_again", "test_fresh")
    assert not shares(inner, "test_fresh", "test_fresh_again")


def test_a_fresh_test_does_not_end_the_warm_world(inner: Inner) -> None:
    assert shares(inner, "test_shares_the_group_again", "test_after_fresh")


def test_worlds_of_different_sizes_are_different_worlds(inner: Inner) -> None:
    assert len(pids(inner, "test_another_size")) == 3
    assert not pids(inner, "test_another_size") & pids(inner, "test_after_fresh")


def test_a_skip_on_all_ranks_leaves_the_world_warm(inner: Inner) -> None:
    assert inner["test_skipped"].outcome == "skipped"
    assert shares(inner, "test_skipped", "test_after_skipped")


def test_a_world_that_is_not_as_it_was_serves_no_other_test(inner: Inner) -> None:
    noted = seen(inner.folder)
    served = {test: {line["pid"] for line in lines} for test, lines in noted.items()}
    assert [dirt for dirt in DIRT if served[f"test_before_{dirt}"] & served[f"test_after_{dirt}"]] == []


def test_the_next_test_is_green(inner: Inner) -> None:
    after = [inner[f"test_after_{dirt}"] for dirt in DIRT]
    assert [result.text for result in after if result.outcome != "passed"] == []


def test_dirt_alone_fails_no_test(inner: Inner) -> None:
    outcomes = {dirt: inner[f"test_{dirt}"].outcome for dirt in DIRT}
    assert {dirt for dirt, outcome in outcomes.items() if outcome == "failed"} == FAILING
    assert set(outcomes.values()) == {"failed", "passed"}


@pytest.mark.parametrize("dirt", sorted(FAILING))
def test_a_test_that_fails_alone_is_not_reported_to_pass_alone(inner: Inner, dirt: str) -> None:
    assert "passes alone" not in inner[f"test_{dirt}"].text
