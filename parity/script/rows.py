"""The rows that a module is given, as hashes; and weights that are moved by a rounding."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.parameter import UninitializedParameter
from torch.utils import _pytree as tree


def hashes(given: Any) -> list[str]:
    """Return a hash for each row of what a module is given: of all tensors that have as many rows as the first.

    What a mask leaves out is none of a row: a batch is padded to its longest row, and each rank has another one.
    """
    mask = _mask(given)
    leaves = tree.tree_leaves(tree.tree_map(_plain, given, is_leaf=lambda each: isinstance(each, Mapping)))
    tensors = [getattr(each, "_local_tensor", each).detach() for each in leaves if isinstance(each, Tensor)]
    tensors = [each.cpu().contiguous() for each in tensors if each.dim()]
    if not tensors:
        return []
    count = len(tensors[0])
    alike = [each for each in tensors if len(each) == count]
    if mask is None or len(mask) != count:
        return [digest(each[number] for each in alike) for number in range(count)]
    return [
        digest(each[number][mask[number]] if each.shape[:2] == mask.shape else each[number] for each in alike)
        for number in range(count)
    ]


def _mask(given: Any) -> Tensor | None:
    """Return the mask of transformers' models, if they are given one; true where a token is."""
    args, named = given
    for each in (named, *args):
        mask = each.get("attention_mask") if isinstance(each, Mapping) else None
        if isinstance(mask, Tensor) and mask.dim() == 2 and not mask.is_floating_point():
            return mask.detach().cpu() != 0
    return None


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def digest(tensors: Iterable[Tensor]) -> str:
    """Return a hash of the bytes of tensors."""
    found = hashlib.sha1()
    for each in tensors:
        found.update(str(each.dtype).encode())
        found.update(each.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def move(parameters: Iterable[Tensor], eps: float) -> None:
    """Move weights by a rounding of this size, or of their own dtype; up or down, by a generator of ours."""
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for each in parameters:
            local = getattr(each, "_local_tensor", each)
            if local.is_floating_point() and not isinstance(local, UninitializedParameter):
                signs = torch.randint(0, 2, local.shape, generator=generator).to(local.dtype) * 2 - 1
                local.mul_(1 + signs * max(eps, torch.finfo(local.dtype).eps))
