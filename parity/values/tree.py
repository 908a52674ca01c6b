"""Batches and outputs of any shape: nested containers of tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from everyrank.model.counts import count
from everyrank.parity.errors import Unusable
from torch import nn
from torch.distributed.tensor import DTensor, Replicate
from torch.utils._pytree import tree_leaves, tree_map_only


def tensors(tree: Any) -> list[torch.Tensor]:
    """Return the tensors with floating numbers, in order."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor) and has_numbers(leaf)]


def has_numbers(value: torch.Tensor) -> bool:
    """Return whether a tensor has floating numbers, which may be complex."""
    return value.is_floating_point() or value.is_complex()


def local(value: torch.Tensor) -> torch.Tensor:
    """Return what this rank holds, without trust in what a DTensor claims of the whole.

    Of complex numbers these are the real and the imaginary parts, in a last dimension.
    """
    if isinstance(value, DTensor):
        value = value.to_local()
    wait = getattr(value, "trigger_wait", None)  # an AsyncCollectiveTensor
    value = wait() if wait is not None else value
    value = value.to_dense() if value.is_sparse else value
    return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value


def gradient_of(parameter: torch.Tensor) -> torch.Tensor:
    """Return what this rank has of a parameter's gradient, at the positions of what it has of the parameter."""
    gradient = parameter.grad
    assert gradient is not None
    gradient = gradient.detach()
    if isinstance(parameter, DTensor) and isinstance(gradient, DTensor):
        # Each term of a sum has the sum's gradient.
        wanted = tuple(Replicate() if each.is_partial() else each for each in parameter.placements)
        if gradient.placements != wanted:
            # An optimizer's step lays it out so, too.
            gradient = gradient.redistribute(parameter.device_mesh, wanted)
    return local(gradient)


def in_dtype(tree: Any, dtype: torch.dtype) -> Any:
    """Return the tree with its floating numbers in a dtype; complex ones have their parts in it."""
    return tree_map_only(torch.Tensor, lambda each: _in(each, dtype), tree)


def module_in(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return the module with its floating numbers in a dtype: `to` takes the imaginary part off complex ones."""
    module._apply(lambda each: _in(each, dtype))
    return module


def _in(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if value.is_complex():
        return value.to(torch.complex128 if dtype == torch.float64 else torch.complex64)
    return value.to(dtype) if value.is_floating_point() else value


def rows_of(batch: Any) -> int:
    """Return how many rows a batch has: the first dimension of its first tensor that has one."""
    for leaf in tree_leaves(batch):
        if isinstance(leaf, torch.Tensor) and leaf.ndim:
            return len(leaf)
    raise Unusable(
        "batch(step) has no tensor with rows: pass split=, a function from the whole batch to this rank's."
    )


def rows(batch: Any, part: int, parts: int) -> Any:
    """Return part number `part` of `parts` equal parts of the batch, by rows."""
    total = rows_of(batch)
    if total % parts:
        raise Unusable(
            f"the batch has {count(total, 'row')}, which {parts} parts do not divide (ranks or microbatches): return "
            "another number of rows from batch(step), change microbatches=, or cut the batch in a step= of your own."
        )
    size = total // parts
    chosen = slice(part * size, (part + 1) * size)

    def cut(leaf: torch.Tensor) -> torch.Tensor:
        return leaf[chosen] if leaf.ndim and len(leaf) == total else leaf

    return tree_map_only(torch.Tensor, cut, batch)


def tokens(batch: Any, part: int, parts: int) -> Any:
    """Return part number `part` of `parts` equal parts of the sequences: of the second dimension of tensors."""
    lengths = [leaf.shape[1] for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor) and leaf.ndim > 1]
    if not lengths or lengths[0] % parts:
        shape = f"sequences of {count(lengths[0], 'token')}" if lengths else "no tensor with two dimensions"
        raise Unusable(
            f"the batch has {shape}, which cannot be cut for {count(parts, 'rank')}: return another length from "
            "batch(step), or pass a function as split=."
        )
    size = lengths[0] // parts
    chosen = slice(part * size, (part + 1) * size)

    def cut(leaf: torch.Tensor) -> torch.Tensor:
        return leaf[:, chosen] if leaf.ndim > 1 and leaf.shape[1] == lengths[0] else leaf

    return tree_map_only(torch.Tensor, cut, batch)


def parts(batch: Any, count: int) -> Iterator[Any]:
    """Yield the microbatches of a batch."""
    for number in range(count):
        yield rows(batch, number, count)
