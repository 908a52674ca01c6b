"""Tests that end in each way that a verdict knows: `benchmarks.worlds` plants them by their numbers."""

import os
import signal

import pytest
import torch
import torch.distributed as dist

from benchmarks.worlds import Planted


def marked(number):
    test = Planted(number)
    marks = [pytest.mark.world(test.size, fresh=test.fresh, timeout=120)]
    if test.kind == "xfail":
        marks.append(pytest.mark.xfail(reason="planted"))
    return pytest.param(test, marks=marks, id=str(number))


@pytest.mark.parametrize("test", [marked(number) for number in range(int(os.environ["BENCHMARK_TESTS"]))])
def test_world(process_group, world, test):
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == world.size
    planted = world.rank == test.rank
    if test.kind == "all skip" or (planted and test.kind == "some skip"):
        pytest.skip(f"planted {test.number}")
    if planted and test.kind == "exit 0":
        os._exit(0)
    if planted and test.kind.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, test.kind))
    assert not planted or test.kind not in ("assertion", "xfail"), f"planted {test.number}"
    if test.kind != "pass" and not (planted and test.kind == "deadlock"):
        dist.all_reduce(total)
