"""parity of a transformer of two layers in a warm world, and what it adds to the steps that it watches."""

import json
import os
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from everyrank.parity import parity, passes
from everyrank.parity.ranks import all_ranks
from everyrank.parity.runs.run import parallelize
from everyrank.parity.setup import Setup
from everyrank.parity.values.tree import parts

from tests.parity.parallel.subjects import SUBJECTS

STEPS, ROUNDS = 3, 7


@pytest.mark.world(4)
@pytest.mark.parametrize("number", range(int(os.environ["BENCHMARK_TESTS"])))
def test_parity(process_group, number):
    report = parity(**SUBJECTS[os.environ["BENCHMARK_WAY"]]().arguments(), steps=STEPS)
    assert report.dtypes == ("fp64", "fp32")


@pytest.mark.world(4)
def test_watched_steps(process_group, world):
    setup = Setup(**SUBJECTS["fsdp"]().arguments(), steps=STEPS)
    with all_ranks() as ranks:
        known = passes.same_model(setup, ranks)
        found = passes.dyed(setup, ranks, known)
        held, cut = found.holdings, found.cut
        truth = passes.truth(setup, ranks, known.dtype, cut, [])
        pairs = [
            (clocked(lambda: plain(setup, cut)), clocked(lambda: watched(setup, ranks, truth, held, cut)))
            for _ in range(ROUNDS)
        ]
    if world.rank == 0:
        Path(os.environ["BENCHMARK_FIGURES"]).write_text(json.dumps(pairs))


def plain(setup, cut):
    """Do what the user's own loop does in fp64, and no more."""
    made = parallelize(setup, torch.float64, exact=True, prepare=lambda model: None)
    for step in range(STEPS):
        for part in parts(cut.apply(setup.whole_batch(step, torch.float64)), setup.microbatches):
            (setup.loss(made.made, part) / setup.microbatches).backward()
        made.optimizer.step()
        made.optimizer.zero_grad()


def watched(setup, ranks, truth, held, cut):
    """Do the same, and compare each tensor of it."""
    passes.run(
        setup, ranks, truth, held, cut, torch.float64, passes.exactly, set(),
        exact=True, near=passes.LIMIT, parts={}, steps=STEPS,
    )  # fmt: skip


def clocked(work):
    """Return what some work takes that all ranks do at once, in seconds: clock, and processor of this rank."""
    dist.barrier()
    began, used = time.perf_counter(), time.process_time()
    work()
    dist.barrier()
    return time.perf_counter() - began, time.process_time() - used
