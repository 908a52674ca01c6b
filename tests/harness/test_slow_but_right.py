"""A world that is only slow is left alone, whatever ranks wait for: the tests of `samples/slow/`."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tests.inner import Project

SAMPLES = Path(__file__).parents[1] / "samples" / "slow"
KINDS = ("late", "groups", "messages", "threads", "processes")


def test_a_world_that_is_only_slow_is_left_alone(project: Project) -> None:
    """One run, in which the workers sleep at the same time."""
    for kind in KINDS:
        project.write(f"test_{kind}.py", (SAMPLES / f"{kind}.py").read_text())
    project.write("slow.py", (SAMPLES / "slow.py").read_text())
    inner = project.run("--leaks=off", "-n", "4")
    assert {nodeid: test.text for nodeid, test in inner.tests.items() if test.outcome != "passed"} == {}
    assert {nodeid.split("::")[0] for nodeid in inner.tests} == {f"test_{kind}.py" for kind in KINDS}
    assert len(inner.tests) == 64, inner.out


def test_a_controller_that_was_stopped_counts_that_time_for_no_deadline(project: Project) -> None:
    project.write(
        "test_inner.py",
        """
        import os, signal, time
        import pytest

        CONTROLLER = os.getpid()

        @pytest.mark.world(2, timeout=2)
        def test_stopped(world):
            if world.rank == 0:
                os.kill(CONTROLLER, signal.SIGSTOP)
                time.sleep(3)  # the other rank asks the controller meanwhile, which the deadline must not hear first
                os.kill(CONTROLLER, signal.SIGCONT)
            world.barrier()
        """,
    )
    inner = project.run()
    assert {name: test.text for name, test in inner.tests.items()} == {"test_inner.py::test_stopped": ""}


def test_a_run_that_was_frozen_counts_that_time_for_no_deadline(project: Project) -> None:
    project.write(
        "test_inner.py",
        """
        import pathlib, time
        import pytest

        @pytest.mark.world(2, timeout=2)
        def test_frozen(world):
            pathlib.Path(f"begun-{world.rank}").touch()
            while not pathlib.Path("thawed").exists():
                time.sleep(0.01)
        """,
    )
    run = project.start()
    while not all((project.folder / f"begun-{rank}").exists() for rank in range(2)):
        time.sleep(0.01)
    frozen = project.processes()
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(3)
    (project.folder / "thawed").touch()
    for pid in frozen:
        os.kill(pid, signal.SIGCONT)
    inner = project.finish(run)
    assert {name: test.text for name, test in inner.tests.items()} == {"test_inner.py::test_frozen": ""}
