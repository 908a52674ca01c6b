"""Ordinary tests: one process, no torch."""

import os

import pytest


@pytest.fixture
def offset():
    return 1


@pytest.mark.parametrize("number", range(int(os.environ["BENCHMARK_TESTS"])))
def test_sum(offset, number):
    assert offset + number == number + 1
