"""--adopt-transports: the transport of RPC agents of adopted tests, seen by the threads that TensorPipe starts."""

from __future__ import annotations

import os

import pytest

from tests.inner import Project

TESTS = """
import os

import torch.distributed.rpc as rpc
from torch.testing._internal.common_distributed import MultiProcessTestCase


class _Base(MultiProcessTestCase):
    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def polls(self, **named):
        options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{self.file_name}", **named)
        rpc.init_rpc(f"worker{self.rank}", rank=self.rank, world_size=self.world_size, rpc_backend_options=options)
        answer = rpc.rpc_sync("worker0", max, args=(2, 3))
        threads = set()
        for task in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{task}/comm") as file:
                threads.add(file.read().strip())
        rpc.shutdown()
        self.assertEqual(answer, 3)
        return "TP_SHM_reactor" in threads

    def note(self, polls):
        if self.rank == 0:
            with open(os.path.join(os.path.dirname(__file__), "noted"), "a") as file:
                file.write(f"{type(self).__name__}::{self._testMethodName} {polls}\\n")


class OfFour(_Base):
    world_size = 4

    def test_nothing_named(self):
        self.note(self.polls())

    def test_shared_memory_named(self):
        self.note(self.polls(_transports=["shm", "uv"]))


class OfTwo(_Base):
    world_size = 2

    def test_nothing_named(self):
        self.note(self.polls())
"""

TWO_CORES = "import os\nos.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])\n"


#: With two cores: whether the agents of a test have the thread that polls shared memory, by the option's value.
POLLS = {
    "auto": {
        "OfFour::test_nothing_named": False,
        "OfFour::test_shared_memory_named": True,
        "OfTwo::test_nothing_named": True,
    },
    "torch": {"OfFour::test_nothing_named": True},
}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
@pytest.mark.parametrize("choice", POLLS)
def test_agents_wait_asleep_only_where_ranks_outnumber_cores_and_nothing_else_is_named(
    project: Project, choice: str
) -> None:
    project.write("conftest.py", TWO_CORES)
    project.write("test_inner.py", TESTS)
    chosen = [f"test_inner.py::{test}" for test in POLLS[choice]]
    inner = project.run("--adopt", f"--adopt-transports={choice}", *chosen)
    assert set(inner.outcomes().values()) == {"passed"}, inner.out
    noted = dict(line.split() for line in (project.folder / "noted").read_text().splitlines())
    assert {test: polls == "True" for test, polls in noted.items()} == POLLS[choice]
    assert ("agents of worlds of more than 2 ranks use the RPC transport uv" in inner.out) == (choice == "auto")


def test_another_choice_in_the_ini_file_is_refused(project: Project) -> None:
    project.write("pytest.ini", "[pytest]\neveryrank_adopt_transports = shm\n")
    project.write("test_inner.py", "")
    inner = project.run()
    assert inner.code == pytest.ExitCode.USAGE_ERROR
    assert "ini key everyrank_adopt_transports: must be one of auto, torch, not 'shm'" in inner.out
