"""The ranks of the next test are forked while this one runs, if the next needs new processes."""

from __future__ import annotations

import pytest

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


@pytest.fixture(scope="module")
def inner(module_project: Project) -> Inner:
    module_project.write("test_inner.py", SOURCE)
    return module_project.run()


def test_every_test_passes(inner: Inner) -> None:
    assert set(inner.outcomes().values()) == {"passed"}, inner.out


def test_the_next_test_runs_in_what_was_forked_ahead(inner: Inner) -> None:
    ahead = inner["test_next_is_forked"].properties["spare"]
    assert inner["test_runs_in_it_and_kills_the_next"].properties["pid"] in ahead
