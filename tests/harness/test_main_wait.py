"""What a blocked main thread waits in, on frames as those of torch's releases."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed as dist
from everyrank.rank.main_wait import Groups, MainWait
from everyrank.wire.messages import WitnessStatement

#: The functions in which new_group() waits: until torch 2.13 the first, from 2.14 on the second.
MAKES_A_GROUP = {
    "2.13": """
def _new_process_group_helper(global_ranks_in_group, timeout=None):
    meets()
""",
    "2.14": """
def _new_process_group_helper(global_ranks_in_group, timeout=None):
    _create_gloo_process_group()

def _create_gloo_process_group():
    meets()
""",
    "on another backend": """
def _new_process_group_helper(global_ranks_in_group, timeout=None):
    _create_nccl_process_group()

def _create_nccl_process_group():
    meets()
""",
}


@pytest.fixture
def groups() -> Iterator[Groups]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield Groups.known(dist.group.WORLD, {})
    dist.destroy_process_group()


def stated(source: str, groups: Groups) -> WitnessStatement:
    """Return what is stated of a main thread that waits in ``meets()`` of a source, which stands for torch's."""
    found: list[WitnessStatement] = []

    def meets() -> None:
        frame = sys._getframe(1)
        found.append(MainWait(frame, [], groups).add_to(WitnessStatement(1, thread=0)))

    torchs: dict[str, Any] = {"meets": meets}
    exec(compile(source, dist.distributed_c10d.__file__, "exec"), torchs)
    torchs["_new_process_group_helper"]([0, 3])
    return found[0]


@pytest.mark.parametrize("torch", ["2.13", "2.14"])
def test_a_group_that_is_made_is_waited_for_with_its_members(groups: Groups, torch: str) -> None:
    wait = stated(MAKES_A_GROUP[torch], groups)
    assert (wait.kind, wait.members, wait.sleep) == ("group", [0, 3], "polls")


def test_a_group_of_another_backend_is_no_certain_wait(groups: Groups) -> None:
    assert stated(MAKES_A_GROUP["on another backend"], groups) == WitnessStatement(1, thread=0)
