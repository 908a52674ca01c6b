"""Tests as most are: one process, no torch."""

import os

import pytest


@pytest.fixture
def one():
    return 1


@pytest.mark.parametrize("number", range(int(os.environ["BENCHMARK_TESTS"])))
def test_sum(one, number):
    assert one + number == number + 1
