"""What sees the calls of torch's groups is not seen itself."""

from __future__ import annotations

from pathlib import Path

from everyrank.rank import witness
from everyrank.rollcall.rollcall import parse
from everyrank.stack.frames import Frame, waits

from tests.inner import Project

TORCH = "/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py"

_TESTS = """
    import pytest, torch
    import torch.distributed as dist

    @pytest.mark.world(2)
    def test_collective(process_group):
        dist.broadcast(torch.ones(2), src=7)

    @pytest.mark.world(2)
    def test_message(process_group):
        dist.recv(torch.ones(2).to_sparse(), src=1 - dist.get_rank())
"""


def test_an_error_of_a_group_is_shown_without_a_frame_of_ours(project: Project) -> None:
    project.write("test_inner.py", _TESTS)
    inner = project.run()
    for name in ("test_collective", "test_message"):
        assert "distributed_c10d.py:" in inner[name].text
        assert not [line for line in inner[name].text.splitlines() if "everyrank/rank/" in line]


def test_a_rank_that_waits_in_such_a_call_waits_in_torch() -> None:
    rank = Path(witness.__file__).parent
    stack, _ = parse(
        "Thread 0x1 (most recent call first):\n"
        f'  File "{rank}/sizes.py", line 72 in _noting\n'
        f'  File "{rank}/group_calls.py", line 21 in wrapped\n'
        f'  File "{TORCH}", line 3145 in broadcast\n'
        '  File "/home/me/test_x.py", line 4 in test_x\n'
    )
    assert stack == (Frame(TORCH, 3145, "broadcast"), Frame("/home/me/test_x.py", 4, "test_x"))
    assert waits(stack)
