"""What a run file remarks on a test that passed: whether its ranks had anything to do with each other."""

from __future__ import annotations

from tests.inner import Project
from tests.run_files import read

_TESTS = """
    import pytest, torch
    import torch.distributed as dist

    pytestmark = pytest.mark.world(2)
    ONE = torch.ones(1)

    def test_nothing(process_group): assert process_group.size() == 2

    def test_reduces(process_group): dist.all_reduce(ONE.clone())

    def test_nothing_after_it(process_group): assert ONE.item() == 1

    def test_waits(process_group): dist.barrier()

    def test_message(process_group, world):
        dist.recv(ONE.clone(), 0) if world.rank else dist.send(ONE, 1)

    def test_group_without_use(process_group): dist.destroy_process_group(dist.new_group([0, 1]))

    def test_group_that_is_left(process_group): dist.all_reduce(ONE.clone(), group=dist.new_group([0, 1]))

    def test_group_that_is_destroyed(process_group):
        group = dist.new_group([0, 1])
        dist.all_reduce(ONE.clone(), group=group)
        dist.destroy_process_group(group)

    def test_half(process_group, world):
        group = dist.new_group([1])
        if world.rank:
            dist.all_reduce(ONE.clone(), group=group)

    @pytest.mark.skip
    def test_skipped(process_group): pass

    @pytest.mark.xfail(strict=True)
    def test_fails(process_group): raise ValueError

    @pytest.mark.world(1)
    def test_alone(process_group): pass

    def test_own_group(world):
        dist.init_process_group("gloo", store=dist.FileStore(f"{world.folder}/s", 2), rank=world.rank, world_size=2)
        dist.all_reduce(ONE.clone())
        dist.destroy_process_group()

    def test_rpc(process_group, rpc_agent): pass
"""


def test_a_green_test_whose_ranks_made_no_collective_is_remarked(project: Project) -> None:
    project.write("test_inner.py", _TESTS)
    inner = project.run("--run-file=out.jsonl")
    assert inner.code == 0, inner.out
    remarks = {case["id"].split("::")[1]: case.get("remarks") for case in read(project.folder / "out.jsonl").cases}
    assert len(remarks) == 14
    quiet = {name for name, lines in remarks.items() if lines}
    # A group that is gone keeps no count: nothing is said of such a test.
    assert quiet == {"test_nothing", "test_nothing_after_it"}
    assert remarks["test_nothing"] == ["this multi-rank test made no collective"]
