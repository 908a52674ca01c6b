"""Hosts with addresses of their own, under torchrun: the link between them is cut."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.engines import by_hand
from tests.inner import Project

pytestmark = pytest.mark.group("clusters")


def _run(*words: str) -> bool:
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


@pytest.fixture
def two_hosts() -> Iterator[list[str]]:
    """Two network namespaces with a link between them, as the hosts 10.77.0.1 and 10.77.0.2."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need the program ip, and root")
    names = [f"everyrank-{os.getpid()}-{number}" for number in (1, 2)]
    ends = [f"er{os.getpid()}a", f"er{os.getpid()}b"]
    try:
        made = all(_run("ip", "netns", "add", name) for name in names)
        made = made and _run("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        if not made:
            pytest.skip("this machine does not allow network namespaces")
        for number, (name, end) in enumerate(zip(names, ends, strict=True), 1):
            assert _run("ip", "link", "set", end, "netns", name)
            assert _run("ip", "-n", name, "link", "set", end, "name", "link0")
            assert _run("ip", "-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "link0")
            for device in ("lo", "link0"):
                assert _run("ip", "-n", name, "link", "set", device, "up")
        yield names
    finally:
        for name in names:
            _run("ip", "netns", "delete", name)


CUT = """
    import os, subprocess, time
    import pytest, torch
    import torch.distributed as dist

    @pytest.mark.world(2)
    def test_before(world, process_group):
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 2

    @pytest.mark.world(2, timeout=120)
    def test_link_is_cut(world, process_group):
        dist.barrier()
        if world.rank == 0:
            subprocess.run(["ip", "link", "set", "link0", "down"], check=True)
        dist.all_reduce(torch.ones(1))

    @pytest.mark.world(1)
    def test_after(world):
        pass
"""


def test_a_host_whose_link_is_cut_is_named_and_the_run_goes_on(project: Project, two_hosts: list[str]) -> None:
    project.write("test_inner.py", CUT)
    started = by_hand(
        project,
        count=2,
        prefix=lambda rank: ["ip", "netns", "exec", two_hosts[rank]],
        MASTER_ADDR="10.77.0.1",
        MASTER_PORT="29511",
    )
    inner = started.finish()
    assert inner.outcomes() == {"test_before": "passed", "test_link_is_cut": "failed", "test_after": "passed"}, (
        inner.out
    )
    text = inner["test_link_is_cut"].text
    assert "rank 1 of 2 was lost: process 1 of torchrun on " in text
    assert "was silent for 15 s" in text
    assert started.agents[0].returncode == 1
