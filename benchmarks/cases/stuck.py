"""Worlds that miss a deadline of one second, with ranks that resist their end in every way."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

WAYS = ("waits", "ignores-sigterm", "holds-the-gil", "is-stopped", "spins", "left-a-child")


@pytest.mark.world(4, timeout=1)
@pytest.mark.parametrize("way", WAYS)
def test_stuck(process_group, world, way):
    Path(os.environ["BENCHMARK_STUCK"], f"{way}-{world.rank}").write_text(f"{os.getpid()} {time.time()}")
    if world.rank != 1 or way == "waits":
        if way == "waits" and world.rank == 1:
            time.sleep(3600)
        dist.all_reduce(torch.ones(1))
    if way == "ignores-sigterm":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(3600)
    elif way == "holds-the-gil":
        ctypes.PyDLL(None).sleep(3600)
    elif way == "is-stopped":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif way == "spins":
        while True:
            pass
    elif way == "left-a-child":
        subprocess.run([sys.executable, "-c", "import time; time.sleep(3600)"], check=False)
