"""Is the model, cut over ranks, still the same model?"""

import pytest
import torch
from everyrank.parity import parity
from model import Net, cut


def batch(step):
    return torch.randn(4, 2, 8, generator=torch.Generator().manual_seed(step))


def loss(model, rows):
    return model(rows).square().mean()


@pytest.mark.world([2, 4])
def test_the_model_that_is_cut_trains_as_in_one_process(process_group):
    parity(model=Net, parallelize=cut, batch=batch, loss=loss)
