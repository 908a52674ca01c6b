"""The ranks of the next test are forked while this one runs, if the next needs new processes."""

from __future__ import annotations

import json

import pytest

from tests.engines import one_run
from tests.inner import Inner, Project

SOURCE = """
    import os, signal, time
    from pathlib import Path
    import pytest

    @pytest.fixture(autouse=True)
    def served():
        with open("served", "a") as served:  # the ranks of a last world may still be on their way out
            served.write(f"{os.getpid()}\\n")

    def spare_ranks(world):
        "The children of the zygote that are of no world yet, as soon as there are as many as in a world."
        world.barrier()
        ours = {int(pid) for pid in Path("served").read_text().split()}
        children = Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children")
        until = time.monotonic() + 20
        while time.monotonic() < until:
            others = {int(pid) for pid in children.read_text().split()} - ours
            if len(others) == world.size:
                return others
        return others

    @pytest.mark.world(2, fresh=True)
    def test_next_is_forked(world, record_property):
        others = spare_ranks(world)
        assert len(others) == 2
        record_property("spare", sorted(others))
        world.barrier()

    @pytest.mark.world(2, fresh=True)
    def test_runs_in_it_and_kills_the_next(world, record_property):
        others = spare_ranks(world)
        world.barrier()
        if world.rank == 0:
            os.kill(min(others), signal.SIGKILL)
        record_property("pid", os.getpid())

    @pytest.mark.world(2, fresh=True)
    def test_gets_a_whole_world_all_the_same(world):
        world.barrier()

    @pytest.mark.world(3, fresh=True)
    def test_another_size(world):
        world.barrier()

    def test_single_process():
        pass

    @pytest.mark.world(2)
    def test_with_an_agent(rpc_agent, world):
        assert len(spare_ranks(world)) == 2  # since a world in which an agent has run is not kept
        world.barrier()

    @pytest.mark.world(2)
    def test_with_another_agent(rpc_agent, world):
        pass
"""


inner = one_run(SOURCE)


def test_every_test_passes(inner: Inner) -> None:
    assert set(inner.outcomes().values()) == {"passed"}, inner.out


def test_the_next_test_runs_in_what_was_forked_ahead(inner: Inner) -> None:
    ahead = inner["test_next_is_forked"].properties["spare"]
    assert inner["test_runs_in_it_and_kills_the_next"].properties["pid"] in ahead


#: The second rank of the first world that is forked ahead finds no descriptors.
_OUT_OF_DESCRIPTORS = """
    import errno, os
    from everyrank.launch import local

    files, asked = local._files, []

    def few(name):
        asked.append(name)
        if len(asked) == 4:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return files(name)

    local._files = few
"""

_TWO = """
    import os, time
    from pathlib import Path
    import pytest

    @pytest.mark.world(2, fresh=True)
    def test_runs_meanwhile(world):
        world.barrier()

    @pytest.mark.world(2, fresh=True)
    def test_starts_its_own(world):
        Path(world.folder, str(os.getpid())).touch()
        world.barrier()
        pids = {int(path.name) for path in Path(world.folder).iterdir()}
        children = Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children")
        until = time.monotonic() + 20
        while (found := {int(pid) for pid in children.read_text().split()}) != pids and time.monotonic() < until:
            time.sleep(0.01)
        assert found == pids  # the half world is gone
        world.barrier()
"""


def test_if_the_next_test_cannot_be_forked_ahead_the_running_test_is_not_to_blame(project: Project) -> None:
    project.write("conftest.py", _OUT_OF_DESCRIPTORS)
    project.write("test_inner.py", _TWO)
    inner = project.run()
    assert inner.outcomes() == {"test_runs_meanwhile": "passed", "test_starts_its_own": "passed"}, inner.out


# --- on fewer cores than ranks ---------------------------------------------------------------------------

#: Notes, whenever the ranks of a next test are to be forked, which methods have ended on some rank.
_NOTES_FORKS = """
    import json
    from pathlib import Path
    from everyrank.controller import attempts

    start_spare = attempts.Attempts._start_spare

    def noted(self, job, following):
        ended = sorted(path.name for path in Path().glob("ended-*"))
        with open("forks", "a") as forks:
            forks.write(json.dumps([job.item.name, ended]) + "\\n")
        start_spare(self, job, following)

    attempts.Attempts._start_spare = noted
    attempts.cores = lambda: {cores}
"""

_DESTROY_THEIR_GROUP = """
    from pathlib import Path
    import torch.distributed as dist
    from everyrank.testcase import MultiProcessTestCase

    class Groups(MultiProcessTestCase):
        world_size = 2

        def setUp(self):
            super().setUp()
            self._spawn_processes()

        def _open(self):
            store = dist.FileStore(self.file_name, self.world_size)
            dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)

        def _ended(self):
            dist.barrier()
            Path(f"ended-{self._testMethodName}").touch()

        def test_1_destroys(self):
            self._open()
            self._ended()

        def test_2_destroys(self):
            self._open()
            self._ended()

        def test_3_opens_none(self):
            pass

        def test_4_destroys(self):
            self._open()
            self._ended()
"""


@pytest.mark.parametrize(("cores", "waits"), [(1, True), (2, False)])
def test_on_few_cores_the_next_is_forked_while_the_ranks_destroy_their_group(
    project: Project, cores: int, waits: bool
) -> None:
    project.write("conftest.py", _NOTES_FORKS.format(cores=cores))
    project.write("test_inner.py", _DESTROY_THEIR_GROUP)
    inner = project.run()
    assert set(inner.outcomes().values()) == {"passed"}, inner.out
    lines = [json.loads(line) for line in (project.folder / "forks").read_text().splitlines()]
    forks: dict[str, list[str]] = dict(lines)
    assert len(forks) == len(lines)  # once for each test
    first, second = ["ended-test_1_destroys"], ["ended-test_1_destroys", "ended-test_2_destroys"]
    assert forks.pop("test_1_destroys") == []
    # The third is expected to destroy a group, since the second did; but it does not, so the fourth does not wait.
    assert forks.pop("test_2_destroys") == (second if waits else first)
    assert ("test_3_opens_none" in forks) == (not waits)
    assert "ended-test_4_destroys" not in forks["test_4_destroys"]


_LOSES_THE_ZYGOTE = """
    import os, signal
    from everyrank.controller import attempts

    start_spare = attempts.Attempts._start_spare

    def loses_the_zygote(self, job, following):
        if job.item.name == "test_2_destroys" and self._pool.launcher.forks:
            zygote = self._pool.launcher.keeper
            os.kill(zygote, signal.SIGKILL)
            os.waitid(os.P_PID, zygote, os.WEXITED | os.WNOWAIT)
        start_spare(self, job, following)

    attempts.Attempts._start_spare = loses_the_zygote
    attempts.cores = lambda: {cores}
"""


@pytest.mark.parametrize(("cores", "outcome"), [(1, "failed"), (2, "passed")], ids=["at-the-end", "at-the-start"])
def test_a_zygote_that_is_found_dead_by_the_forks_for_the_next_test(
    project: Project, cores: int, outcome: str
) -> None:
    """A test that had begun fails by name, soon; one that had not runs again."""
    project.write("conftest.py", _LOSES_THE_ZYGOTE.format(cores=cores))
    project.forks_keeper = True
    project.write("test_inner.py", _DESTROY_THEIR_GROUP)
    inner = project.run("-k", "destroys", "-x")
    outcomes = {"test_1_destroys": "passed", "test_2_destroys": outcome, "test_4_destroys": "passed"}
    if outcome == "failed":
        del outcomes["test_4_destroys"]  # the run ends: the ranks of new interpreters are slow to start
    assert inner.outcomes() == outcomes, inner.out
    if outcome == "failed":
        assert "the zygote was killed by SIGKILL, and all ranks with it" in inner["test_2_destroys"].text
