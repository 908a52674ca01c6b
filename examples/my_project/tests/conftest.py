"""Fixtures of the project, for ranks and for single-process tests."""

import pytest
import torch


@pytest.fixture
def whole():
    """The model on one process, with the same weights on every rank, though the ranks' seeds differ."""
    torch.manual_seed(7)
    return torch.nn.Linear(4, 7).double()
