"""parity of a transformer of two layers in a warm world, and what it adds to the steps that it watches."""

import json
import os
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from everyrank.parity import parity
from everyrank.parity.judge.training import Training
from everyrank.parity.run.truth import truth
from everyrank.parity.setup.given import Setup
from everyrank.parity.setup.known import dyed, same_model
from everyrank.parity.setup.models import parallelize
from everyrank.parity.setup.ranks import all_ranks
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
        known = same_model(setup, ranks)
        found = dyed(setup, ranks, known)
        training = Training(setup, ranks, known, found, truth(setup, ranks, known.dtype, found.cut, []))
        pairs = [(clocked(lambda: plain(setup, found.cut)), clocked(training.wide)) for _ in range(ROUNDS)]
    if world.rank == 0:
        Path(os.environ["BENCHMARK_FIGURES"]).write_text(json.dumps(pairs))


def plain(setup, cut):
    """Do what the user's own loop does in fp64, and no more."""
    made = parallelize(setup, torch.float64, exact=True, prepare=lambda model: None)
    for step in range(STEPS):
        for part in parts(cut.apply(setup.whole_batch(step, torch.float64)), setup.microbatches):
            (setup.loss(made.made, part) / setup.microbatches).backward()
        made.optimizer.step()
        made.optimizer.end()


def clocked(work):
    """Return what some work takes that all ranks do at once, in seconds: clock, and processor of this rank."""
    dist.barrier()
    began, used = time.perf_counter(), time.process_time()
    work()
    dist.barrier()
    return time.perf_counter() - began, time.process_time() - used
