"""Tests that only simulated ranks take part in: their bodies never run."""

import os

import pytest


@pytest.mark.world(int(os.environ["BENCHMARK_SIZE"]))
@pytest.mark.parametrize("number", range(int(os.environ["BENCHMARK_TESTS"])))
def test_simulated(world, number):
    raise AssertionError("no rank is real")
