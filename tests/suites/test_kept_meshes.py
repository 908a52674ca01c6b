"""A world keeps its meshes of two dimensions from case to case, unless a case left a rank in a collective there."""

from __future__ import annotations

from tests.inner import Inner, Project
from tests.run_files import read

SOURCE = """
    import pytest
    import torch
    import torch.distributed as dist
    from everyrank.suites.arena.groups import own_group
    from everyrank.suites.trainer.subjects.meshes import mesh_of_pairs

    pytestmark = pytest.mark.world(4)

    @pytest.fixture
    def mesh(process_group, record_property):
        made = mesh_of_pairs("cpu", ("data", "tensor"))
        record_property("groups", [group.group_name for group in made.get_all_groups()])
        return made

    def test_makes_it(mesh):
        total = torch.ones(1)
        dist.all_reduce(total, group=mesh.get_group("tensor"))
        assert total == 2

    def test_has_it_again(mesh, world):
        dist.all_reduce(torch.ones(1), group=mesh.get_group("data"))
        if world.rank == 0:  # its peer never comes
            dist.all_reduce(torch.ones(1), group=mesh.get_group("tensor"), async_op=True)

    def test_makes_another(mesh):
        dist.all_reduce(torch.ones(1), group=mesh.get_group("tensor"))

    def test_makes_its_own_in_a_group_of_the_case(process_group, record_property, world):
        with own_group():
            made = mesh_of_pairs("cpu", ("data", "tensor"))
            record_property("groups", [group.group_name for group in made.get_all_groups()])
            world.barrier()  # a rank that leaves closes its connections
"""


def test_a_world_keeps_its_mesh_while_its_ranks_are_in_step(project: Project) -> None:
    project.write("test_inner.py", SOURCE)
    inner = project.run("-p", "no:randomly", "--run-file=run.jsonl", "-W", "ignore")
    assert {result.outcome for result in inner.tests.values()} == {"passed"}, inner.out
    assert _groups(inner, "has_it_again") == _groups(inner, "makes_it")
    other = _groups(inner, "makes_another")
    assert not set(other) & set(_groups(inner, "makes_it"))
    assert not set(_groups(inner, "makes_its_own_in_a_group_of_the_case")) & set(other)
    worlds = {line["id"].partition("::")[2]: line["world"] for line in read(project.folder / "run.jsonl").cases}
    assert len({worlds[f"test_{name}"] for name in ("makes_it", "has_it_again", "makes_another")}) == 1


def _groups(inner: Inner, name: str) -> list[str]:
    found = inner[f"test_{name}"].properties["groups"]
    assert isinstance(found, list)
    return found
