"""Tests for two hosts: without a common folder, and with GPUs."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

#: Four ranks on two hosts that share no folder. A module ``helper`` has WORLD = 4.
APART = """
    import os
    import pytest, torch
    import torch.distributed as dist
    import torch.distributed.rpc as rpc
    from helper import WORLD

    @pytest.mark.world(WORLD)
    def test_group(world, process_group, tmp_path):
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total.item() == 4
        world.all_agree(os.environ["GROUP_WORLD_SIZE"])
        assert os.environ["GROUP_WORLD_SIZE"] == "2"
        (tmp_path / "own").write_text("x")
        with open(f"{world.host_folder}/{world.rank}", "w"):
            world.barrier()
        assert sorted(os.listdir(world.host_folder)) == (["0", "1"] if world.rank < 2 else ["2", "3"])

    @pytest.mark.world(WORLD)
    def test_group_again(world, process_group):
        assert os.listdir(world.host_folder) == []
        pair = dist.new_group([0, 3])
        total = torch.full((1,), float(world.rank))
        if world.rank in (0, 3):
            dist.all_reduce(total, group=pair)
            assert total.item() == 3

    @pytest.mark.world(WORLD)
    def test_own_group_twice(world):
        for _ in range(2):
            dist.init_process_group("gloo", init_method=world.init_method, rank=world.rank, world_size=world.size)
            dist.barrier()
            dist.destroy_process_group()

    @pytest.mark.world(WORLD)
    def test_agents(world, process_group, rpc_agent):
        there = f"worker{(world.rank + 1) % world.size}"
        assert rpc.rpc_sync(there, max, args=(1, 2)) == 2
        dist.barrier()

    @pytest.mark.world(WORLD)
    def test_folder(world):
        world.folder

    @pytest.mark.world(2)
    def test_folder_of_one_host(world):
        world.all_agree(sorted(os.listdir(world.folder)))
"""

OUTCOMES = {
    "test_group": "passed",
    "test_group_again": "passed",
    "test_own_group_twice": "passed",
    "test_agents": "passed",
    "test_folder": "failed",
    "test_folder_of_one_host": "passed",
}


#: Two hosts have three GPUs together.
GPUS = """
    import json, os, pathlib
    import pytest

    def note(name, world):
        with open(pathlib.Path(__file__).with_name(name), "a") as file:
            seen = os.environ["CUDA_VISIBLE_DEVICES"]
            facts = {"rank": world.rank, "seen": seen, "device": world.device, "pid": os.getpid()}
            print(json.dumps(facts), file=file)

    @pytest.mark.world(3, gpus=3, backend="gloo")
    def test_three(world):
        note("three", world)

    @pytest.mark.world(3, gpus=3, backend="gloo")
    def test_three_again(world):
        note("again", world)

    @pytest.mark.world(2)
    def test_none(world):
        note("none", world)

    @pytest.mark.world(2, device="cuda", backend="gloo", spread=True)
    def test_apart(world):
        note("apart", world)

    @pytest.mark.world(4, gpus=4, backend="gloo")
    def test_four(world):
        pass

    @pytest.mark.world(2, gpus=1)
    def test_one_for_two(world):
        pass

    @pytest.mark.world(2, gpus=2, gpu_memory="40GB", backend="gloo")
    def test_large(world):
        pass
"""


def apart_from(*folders: Path) -> list[str]:
    """Return the words before a command for which these folders are empty, as on another machine; or skip."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine allows no mounts of one's own")
    mounts = [f"mount -t tmpfs none {shlex.quote(str(folder))}" for folder in folders]
    return ["unshare", "--mount", "sh", "-c", " && ".join([*mounts, 'exec "$@"']), "sh"]
