"""Fixtures of the project, used in ranks as anywhere else."""

import pytest
import torch


@pytest.fixture
def whole():
    """The model on one process: the same on every rank, whose own seeds differ."""
    torch.manual_seed(7)
    return torch.nn.Linear(4, 7).double()
