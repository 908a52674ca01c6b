"""lightly: its losses with ``gather_distributed=True``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from everyrank.suites import conformance

pytest.importorskip("lightly", reason="pip install lightly")
from lightly import loss as lightly

from losses.contract import subjects


def views(kind: Callable[..., torch.nn.Module], **options: Any) -> Callable[..., torch.Tensor]:
    """Return a loss of two views."""
    loss = kind(gather_distributed=True, **options)
    return lambda left, right, labels, scale: loss(left, right)


def swav() -> Callable[..., torch.Tensor]:
    loss = lightly.SwaVLoss(sinkhorn_gather_distributed=True)
    return lambda left, right, labels, scale: loss([left, right], [])


def msn(kind: Callable[..., torch.nn.Module], **options: Any) -> Callable[..., torch.Tensor]:
    loss = kind(gather_distributed=True, **options)
    prototypes = torch.eye(4)
    return lambda left, right, labels, scale: loss(left, right, prototypes.to(left.dtype))


LOSSES = {
    **{
        name: partial(views, kind, **options)
        for name, kind, options in (
            ("barlow", lightly.BarlowTwinsLoss, {}),
            ("dcl", lightly.DCLLoss, {}),
            ("dclw", lightly.DCLWLoss, {}),
            ("directclr", lightly.DirectCLRLoss, {"loss_dim": 3}),
            ("ntxent", lightly.NTXentLoss, {}),
            ("tico", lightly.TiCoLoss, {}),
            ("vicreg", lightly.VICRegLoss, {}),
        )
    },
    "msn": partial(msn, lightly.MSNLoss),
    "msn-without-regularization": partial(msn, lightly.MSNLoss, regularization_weight=0),
    "pmsn": partial(msn, lightly.PMSNLoss),
    "swav": swav,
}
#: What is a mean over a rank's own rows.
OF_OWN_ROWS = {"statistic-of-own-rows": ["barlow", "dclw", "msn", "pmsn"]}


@pytest.mark.filterwarnings("ignore")
@conformance(*subjects("lightly", LOSSES, OF_OWN_ROWS))
def test_lightly(case: Any) -> None:
    case.run()
