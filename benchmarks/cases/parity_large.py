"""parity of a large transformer on two ranks: how long it takes, and how much memory all ranks have at their most."""

import contextlib
import json
import os
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from everyrank.parity import parity
from everyrank.parity.setup.given import Setup
from everyrank.parity.setup.memory import collect
from everyrank.parity.setup.models import parallelize
from everyrank.parity.values.tree import parts

from tests.parity.parallel.subjects.replicas import Ddp
from tests.parity.parallel.subjects.sharded import Fsdp
from tests.parity.parallel.transformer import Sizes

#: A number of elements that no model has: memory is given back whatever the width.
LARGEST = 1 << 62
WIDTH = int(os.environ.get("BENCHMARK_WIDTH", "1032"))
SIZES = Sizes(layers=8, width=WIDTH, hidden=4 * WIDTH, vocabulary=600)
WAYS = {
    kind.__name__.lower(): type(kind.__name__, (kind,), {"transformer": SIZES, "rows": 8}) for kind in (Ddp, Fsdp)
}


@pytest.mark.world(2, timeout=3600)
@pytest.mark.parametrize("way", WAYS)
def test_a_large_model(process_group, world, way):
    pids = [None] * world.size
    dist.all_gather_object(pids, os.getpid())
    subject = WAYS[way]()
    watched = pids if world.rank == 0 else []
    figures = {"plain": measured(lambda: plain(subject), watched)}
    collect(LARGEST)
    figures["parity"] = measured(lambda: agrees(subject), watched)
    figures["parameters"] = sum(each.numel() for each in subject.model().parameters())
    if world.rank == 0:
        Path(os.environ["BENCHMARK_MEMORY"], f"{way}.json").write_text(json.dumps(figures))


def agrees(subject):
    report = parity(**subject.arguments())
    assert report.passed, report.text()


def plain(subject):
    """Train as the user does, in fp64 and in fp32, and compare nothing."""
    setup = Setup(**subject.arguments())
    for dtype in (torch.float64, torch.float32):
        made = parallelize(setup, dtype, exact=dtype == torch.float64, prepare=lambda model: None)
        for step in range(setup.steps):
            batch = subject.mine(setup.whole_batch(step, dtype))
            for part in parts(batch, setup.microbatches):
                (setup.loss(made.made, part) / setup.microbatches).backward()
            made.optimizer.step()
            made.optimizer.end()
        del made
        collect(LARGEST)


def measured(work, pids):
    """Return what some work takes on this rank that all ranks do at once, and the memory of these processes."""
    dist.barrier()
    began, used = time.perf_counter(), time.process_time()
    with most_memory(pids) as most:
        work()
        dist.barrier()
    return {"seconds": time.perf_counter() - began, "processor": time.process_time() - used, **most}


@contextlib.contextmanager
def most_memory(pids):
    """Sample the memory of processes: their own, and their share of what they have mapped of files."""
    most, ended = {"Pss_Anon": 0, "Pss_File": 0, "Pss_Shmem": 0, "Pss": 0}, threading.Event()

    def sample():
        while not ended.wait(0.1):
            held = [read(pid) for pid in pids]
            for name in most:
                most[name] = max(most[name], sum(each.get(name, 0) for each in held))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield most
    finally:
        ended.set()
        thread.join()


def read(pid):
    """Return what the kernel says of a process, in kB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    return {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
