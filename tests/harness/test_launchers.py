"""The launchers: how they start ranks, and that a test sees no difference between them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial
from typing import Any

import pytest
from everyrank.rank import prepare

from tests.engines import elsewhere, run_under
from tests.inner import Inner, Project

#: Those that end a world come first: clean interpreters are slow to replace.
MIXED = """
    import os, signal, unittest
    import pytest, torch
    import torch.distributed as dist

    pytestmark = pytest.mark.world(2)

    def test_killed(world):
        if world.rank:
            os.kill(os.getpid(), signal.SIGKILL)

    def test_fails_on_one(process_group, world):
        assert world.rank != 1
        dist.barrier()

    @pytest.fixture(scope="module")
    def of_module():
        return {"made": 1}

    @pytest.mark.parametrize("apply", [lambda t: t + 1, torch.neg], ids=["plus", "minus"])
    def test_parameters(world, of_module, apply, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        world.all_agree(apply(torch.ones(2)))

    def test_skips(world):
        pytest.skip("no need")

    class TestUnittest(unittest.TestCase):
        def setUp(self):
            self.value = 2

        def test_method(self):
            self.assertEqual(self.value, int(os.environ["WORLD_SIZE"]))

    @pytest.mark.xfail(reason="known")
    def test_xfails(world):
        assert world.rank < 0
"""

EXPECTED = {
    "test_killed": "failed",
    "test_fails_on_one": "failed",
    "test_parameters[plus]": "passed",
    "test_parameters[minus]": "passed",
    "test_skips": "skipped",
    "test_method": "passed",
    "test_xfails": "xfailed",
}


#: Of the clusters, torchrun's is the smoke test: it takes a fifth of the time of Ray's.
_smoke = partial(pytest.param, marks=[pytest.mark.group("clusters"), pytest.mark.smoke])


@pytest.mark.parametrize("launcher", ["fork", "spawn", _smoke("torchrun"), elsewhere("ray")])
def test_outcomes_are_the_same_under_every_launcher(project: Project, launcher: str) -> None:
    project.write("test_mixed.py", MIXED)
    project.forks_keeper = launcher == "spawn"
    inner = run_under(launcher, project)
    assert inner.outcomes() == EXPECTED, inner.out
    assert "rank 1 of 2 failed first, in call" in inner["test_fails_on_one"].text
    assert "rank 1 of 2 was killed by SIGKILL" in inner["test_killed"].text
    assert inner.warnings == []


WITH_A_HOLE = """
    import pytest, torch
    import torch.distributed as dist

    @pytest.mark.world(2)
    def test_sum(process_group, world):
        total = torch.full((3,), float(world.rank + 1))
        dist.all_reduce(total)
        assert (total > 2).all()
"""


@pytest.mark.parametrize("launcher", [elsewhere("torchrun"), elsewhere("ray")])
def test_a_hole_is_found_on_other_hosts_too(project: Project, launcher: str) -> None:
    project.write("test_inner.py", WITH_A_HOLE)
    inner = run_under(launcher, project, "--mutate")
    assert "nothing notices if the all_reduce at test_inner.py:8 gets the part of rank " in inner.out, inner.out
    assert "5 mutants of 1 collective in 1 test: 3 killed (3 by an assertion or an error), 1 survived" in inner.out


POLICY = """
    import os, threading
    import pytest

    @pytest.mark.world(2)
    def test_policy_of_each_thread(process_group, world):
        process_group.barrier().wait()
        threads = {os.sched_getscheduler(int(thread)) for thread in os.listdir("/proc/self/task")}
        assert threads == {os.SCHED_BATCH}

    def test_policy_of_a_plain_test():
        assert os.sched_getscheduler(0) == os.SCHED_OTHER
"""


@pytest.mark.parametrize("launcher", ["fork", elsewhere("spawn")])
def test_ranks_run_under_the_batch_policy(project: Project, launcher: str) -> None:
    project.write("test_inner.py", POLICY)
    inner = project.run(f"--launcher={launcher}")
    assert set(inner.outcomes().values()) == {"passed"}, inner.out


def test_ranks_keep_the_policy_that_pytest_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """No process here runs under it: on a busy machine one that is to be idle would not end."""
    asked: list[Any] = []
    monkeypatch.setattr(os, "sched_setscheduler", lambda *arguments: asked.append(arguments))
    for policy in (os.SCHED_IDLE, os.SCHED_FIFO):
        monkeypatch.setattr(os, "sched_getscheduler", lambda _, policy=policy: policy)
        prepare._let_wakers_run_on()
    assert asked == []


# --- the zygote and its ranks ------------------------------------------------------------------------

CONFTEST = """
    import json, os, threading
    import pytest

    @pytest.fixture
    def note(request):
        def write(**facts):
            with open(os.path.join(os.path.dirname(__file__), "noted.jsonl"), "a") as file:
                file.write(json.dumps({"test": request.node.name, **facts}) + "\\n")
        return write
"""

ZYGOTE = """
    import os, sys, threading
    import pytest, torch

    touched = []

    def test_single_comes_first(note):
        touched.append(1)
        torch.set_num_threads(2)
        torch.ones(300, 300) @ torch.ones(300, 300)
        threading.Thread(target=threading.Event().wait, daemon=True).start()
        note(pid=os.getpid())

    @pytest.mark.world(2)
    def test_zygote(world, note):
        zygote = os.getppid()
        note(rank=world.rank, zygote=zygote, threads=os.listdir(f"/proc/{zygote}/task"), touched=touched)

    @pytest.mark.world(2)
    def test_intra_op_threads(note):
        note(threads=torch.get_num_threads(), variable=os.environ["OMP_NUM_THREADS"])

    @pytest.mark.world(2)
    def test_warm_one(world, note):
        note(rank=world.rank, pid=os.getpid())

    @pytest.mark.world(2)
    def test_warm_two(world, note):
        note(rank=world.rank, pid=os.getpid())

    @pytest.mark.world(2, fresh=True)
    def test_fresh(world, note):
        note(rank=world.rank, pid=os.getpid())

    @pytest.mark.world(2)
    def test_warm_three(world, note):
        note(rank=world.rank, pid=os.getpid())
"""


class Noted:
    """The facts that the inner tests wrote into a file."""

    def __init__(self, inner: Inner) -> None:
        self.inner = inner
        self.lines = [json.loads(line) for line in (inner.folder / "noted.jsonl").read_text().splitlines()]

    def __call__(self, test: str, fact: str) -> list[Any]:
        """Return a fact as each rank noted it."""
        assert self.inner[test].outcome == "passed", self.inner[test].text
        lines = [line for line in self.lines if line["test"] == test]
        return [line[fact] for line in sorted(lines, key=lambda line: line.get("rank", 0))]


def zygote_run(project: Project, *arguments: str) -> Noted:
    project.write("conftest.py", CONFTEST)
    project.write("test_zygote.py", ZYGOTE)
    return Noted(project.run(*arguments))


@pytest.fixture(scope="module")
def noted(module_project: Project) -> Noted:
    return zygote_run(module_project, "-n1")


class TestZygote:
    """The zygote is forked right after collection, and stays as it was then."""

    def test_ranks_have_one_parent_which_is_not_the_controller(self, noted: Noted) -> None:
        (controller,) = noted("test_single_comes_first", "pid")
        first, second = noted("test_zygote", "zygote")
        assert first == second != controller

    def test_it_has_one_thread_whatever_the_controller_has(self, noted: Noted) -> None:
        for zygote, threads in zip(noted("test_zygote", "zygote"), noted("test_zygote", "threads"), strict=True):
            assert threads == [str(zygote)]

    def test_it_has_seen_no_test_run(self, noted: Noted) -> None:
        assert noted("test_zygote", "touched") == [[], []]

    def test_a_rank_has_one_intra_op_thread(self, noted: Noted) -> None:
        assert noted("test_intra_op_threads", "threads") == [1, 1]
        assert noted("test_intra_op_threads", "variable") == ["1", "1"]

    def test_a_warm_world_keeps_its_processes(self, noted: Noted) -> None:
        assert noted("test_warm_one", "pid") == noted("test_warm_two", "pid")

    def test_a_fresh_world_has_processes_of_its_own(self, noted: Noted) -> None:
        """It leaves the warm world to later tests."""
        assert not set(noted("test_fresh", "pid")) & set(noted("test_warm_two", "pid"))
        assert noted("test_warm_three", "pid") == noted("test_warm_two", "pid")


@pytest.mark.group("clusters")
def test_clean_interpreters_serve_several_tests_unless_worlds_are_fresh(project: Project) -> None:
    noted = zygote_run(project, "--launcher=spawn", "-k", "warm_one or warm_two")
    assert noted("test_warm_one", "pid") == noted("test_warm_two", "pid")
    (project.folder / "noted.jsonl").unlink()
    noted = zygote_run(project, "--launcher=spawn", "-k", "warm_one or warm_two", "--fresh-worlds")
    assert not set(noted("test_warm_one", "pid")) & set(noted("test_warm_two", "pid"))


# --- when a fork is unsafe ---------------------------------------------------------------------------

LINEAGE = """
    import os
    import torch

    def test_lineage(world, note):
        torch.ones(1, requires_grad=True).sum().backward()
        with open(f"/proc/{os.getpid()}/cmdline", "rb") as file:
            note(rank=world.rank, spawned=b"everyrank.rank.spawned" in file.read())
"""

#: What an inner conftest does -> why its worlds are spawned.
UNSAFE = {
    "if hasattr(os, 'fork'): del os.fork": "linux has no fork",
    "import torch; torch.cuda.is_initialized = lambda: 'spawned' not in sys.orig_argv[2]": (
        "CUDA was initialised during collection"
    ),
    "import torch; torch._C._cuda_isInBadFork = lambda: 'spawned' not in sys.orig_argv[2];"
    " torch.cuda.device_count = lambda: 1": "CUDA was asked for its GPUs during collection",
}


@pytest.mark.group("clusters")
@pytest.mark.parametrize("deed", UNSAFE, ids=UNSAFE.values())
def test_if_a_fork_is_unsafe_worlds_are_spawned_and_the_report_has_the_reason(project: Project, deed: str) -> None:
    """The same holds if warnings are errors: this warning is for a person, and must not end the run."""
    project.write("conftest.py", CONFTEST)
    project.write("test_lineage.py", f"import os, sys\n{deed}\n" + LINEAGE.replace("\n    ", "\n"))
    noted = Noted(project.run("test_lineage.py", "-W", "error"))
    assert noted("test_lineage", "spawned") == [True, True]
    assert [warning["text"] for warning in noted.inner.warnings] == [
        f"everyrank: --launcher=fork is not possible: {UNSAFE[deed]}. Worlds are spawned instead, more slowly."
    ]
    assert f"--launcher=fork is not possible: {UNSAFE[deed]}" in noted.inner.out


#: What an inner conftest does that hinders no fork.
SAFE = {
    # torch's usual build is for CUDA, and many machines that run tests have no GPU: is_available() in a skipif.
    "CUDA was asked and found no GPU": (
        "torch._C._cuda_isInBadFork = lambda: True; torch.cuda.device_count = lambda: 0"
    ),
    # torch refuses backward in a fork only where its engine has started device threads.
    "autograd ran on CPU": "torch.ones(3, requires_grad=True).sum().backward()",
}


@pytest.mark.parametrize("deed", SAFE.values(), ids=SAFE)
def test_what_leaves_nothing_to_lose_does_not_hinder_a_fork(project: Project, deed: str) -> None:
    project.write("conftest.py", CONFTEST)
    project.write("test_lineage.py", f"import torch\n{deed}\n" + LINEAGE.replace("\n    ", "\n"))
    noted = Noted(project.run("test_lineage.py"))
    assert noted("test_lineage", "spawned") == [False, False]
    assert noted.inner.warnings == []


def test_the_plugin_imports_nothing_that_costs() -> None:
    """torch and msgspec wait for the first multi-rank test."""
    asked = "import sys, everyrank.plugin, everyrank.fixtures.plugin; print({'torch', 'msgspec'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
