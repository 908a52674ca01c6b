"""open_clip: its contrastive losses, with each option that gathers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import torch.distributed as dist
from everyrank.suites import conformance

pytest.importorskip("open_clip", reason="pip install open-clip-torch")
from open_clip.loss import ClipLoss, SigLipLoss

from losses.contract import subjects


def clip(**options: bool) -> Callable[..., torch.Tensor]:
    loss = ClipLoss(rank=dist.get_rank(), world_size=dist.get_world_size(), **options)
    return lambda left, right, labels, scale: loss(left, right, scale)


def siglip(way: str) -> Callable[..., torch.Tensor]:
    loss = SigLipLoss(rank=dist.get_rank(), world_size=dist.get_world_size(), dist_impl=way)
    return lambda left, right, labels, scale: loss(left, right, scale, scale - 2)


def named(local: bool, gradient: bool) -> str:
    options = (("local", local), ("with-grad", gradient))
    return "-".join(["clip", *(name for name, chosen in options if chosen)])


LOSSES = {
    **{
        named(*each): partial(clip, local_loss=each[0], gather_with_grad=each[1])
        for each in product((False, True), repeat=2)
    },
    **{f"siglip-{way}": partial(siglip, way) for way in ("bidir", "shift", "reduce", "gather")},
}


@pytest.mark.filterwarnings("ignore")
@conformance(*subjects("open-clip-torch", LOSSES, {"gathered-without-a-gradient": ["clip", "clip-local"]}))
def test_open_clip(case: Any) -> None:
    case.run()
