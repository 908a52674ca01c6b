"""Each rank reports its own memory while the whole world exists."""

import json
import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist


@pytest.mark.world(int(os.environ["BENCHMARK_SIZE"]))
def test_memory(process_group, world):
    dist.all_reduce(torch.ones(3))
    world.barrier()
    held = next(
        line.split()[1] for line in Path("/proc/self/smaps_rollup").read_text().splitlines() if "Pss:" in line
    )
    world.barrier()
    Path(os.environ["BENCHMARK_MEMORY"], str(world.rank)).write_text(json.dumps(int(held)))
