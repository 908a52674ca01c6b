"""The ways to change a collective: which ones fit a call, and what they make of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from everyrank.model.mutation import LEFT_OUT, MEAN, NO_WAIT, ROOT, STALE, SUM, TWICE, WITHOUT, ZERO
from everyrank.mutate.operators import Operation, Tensors

#: The ways that fit the calls of each name, if the group has more than one rank.
_WAYS = {
    "all_reduce": (LEFT_OUT, MEAN, SUM, STALE, ZERO, TWICE, WITHOUT),
    "reduce": (LEFT_OUT, MEAN, SUM, ZERO, TWICE),
    "broadcast": (LEFT_OUT, ROOT, STALE),
    "all_gather": (LEFT_OUT, STALE, ZERO, TWICE, NO_WAIT),
    "all_gather_into_tensor": (LEFT_OUT, STALE, ZERO, TWICE, NO_WAIT),
    "reduce_scatter": (LEFT_OUT, MEAN, SUM, STALE, ZERO, TWICE, NO_WAIT),
    "reduce_scatter_tensor": (LEFT_OUT, MEAN, SUM, STALE, ZERO, TWICE, NO_WAIT),
    "gather": (ZERO, TWICE),
    "scatter": (ZERO,),
    "all_to_all": (LEFT_OUT, STALE, ZERO, NO_WAIT),
    "all_to_all_single": (LEFT_OUT, STALE, ZERO, NO_WAIT),
    "send": (STALE, ZERO),
}


@dataclass
class Change:
    """What a way makes of a call on one rank: a second call beside it, and the tensors that come out instead."""

    result: Callable[[Tensors, Tensors], Tensors]
    """Returns what comes out, of the real result and of that of the second call."""
    inputs: Tensors | None = None
    """What goes into the second call; None if there is none."""
    root: int | None = None


def fitting(call: Operation) -> list[str]:
    """Return the ways in which this call can be changed."""
    size = call.group.size()
    return [way for way in _WAYS[call.name] if size > 1 and _fits(way, call, size)]


def _fits(way: str, call: Operation, size: int) -> bool:
    floating = all(tensor.is_floating_point() for tensor in call.inputs)
    match way:
        case "mean":
            return call.reduction == "sum" and floating
        case "sum":
            return call.reduction == "avg" and floating
        case "twice":
            return not call.reduction or (call.reduction in ("sum", "avg") and _counts(call.inputs))
        case "without":
            return call.reduction in ("sum", "avg") and size > 2 and _counts(call.inputs)
        case "no-wait":
            return call.asynchronous
        case "left-out" if call.name.startswith("all_to_all"):
            return [tensor.numel() for tensor in call.inputs] == [tensor.numel() for tensor in call.outputs]
    return True


def _counts(tensors: Tensors) -> bool:
    return all(tensor.dtype is not torch.bool for tensor in tensors)


def change(way: str, call: Operation, target: int, saved: Tensors) -> Change:
    """Return what the way makes of a call that is about to be made; ``target`` is a rank in its group.

    ``saved`` is filled with the result of the call before, before this one is over.
    """
    before = copies(call.inputs)
    me, size = call.group.rank(), call.group.size()
    if way == LEFT_OUT:
        return Change(lambda real, second: _own(call, before, me, size))
    if way in (MEAN, SUM):
        factor = 1 / size if way == MEAN else size
        return Change(lambda real, second: [tensor * factor for tensor in real])
    if way == STALE:
        return Change(lambda real, second: saved or real)
    if way == NO_WAIT:
        held = copies(call.outputs)
        return Change(lambda real, second: held)
    if way == ROOT:
        return Change(lambda real, second: second, before, target)
    if way == TWICE and not call.reduction:
        return Change(lambda real, second: _doubled(call, real, target, size))
    if way == TWICE:
        return Change(lambda real, second: second, [tensor * 2 for tensor in before] if me == target else before)
    zeroed = [torch.zeros_like(tensor) for tensor in before] if me == target else before
    if way == ZERO:
        return Change(lambda real, second: second, zeroed)
    assert way == WITHOUT
    factor = size / (size - 1) if call.reduction == "avg" else 1
    kept = copies(call.inputs)
    return Change(
        lambda real, second: (
            kept if me == target else [tensor * factor for tensor in second] if factor != 1 else second
        ),
        zeroed,
    )


def copies(tensors: Tensors) -> Tensors:
    return [tensor.detach().clone() for tensor in tensors]


def _own(call: Operation, before: Tensors, me: int, size: int) -> Tensors:
    """Return what comes out if each rank keeps its own input."""
    match call.name:
        case "all_gather":
            return before * size
        case "all_gather_into_tensor":
            return [torch.cat([before[0].reshape(-1)] * size).view_as(call.outputs[0])]
        case "reduce_scatter":
            return before[me : me + 1]
        case "reduce_scatter_tensor":
            return [before[0].reshape(size, -1)[me].view_as(call.outputs[0])]
        case "all_to_all" | "all_to_all_single":
            return [mine.reshape(-1).view_as(output) for mine, output in zip(before, call.outputs, strict=True)]
    return before


def _doubled(call: Operation, real: Tensors, target: int, size: int) -> Tensors:
    """Return what is gathered if the part of a rank stands in the part of the next one, too."""
    if not real:
        return real  # this rank takes nothing
    after = (target + 1) % size
    if call.name != "all_gather_into_tensor":
        each = len(real) // size  # several tensors of a rank, if they are coalesced
        return [
            real[target * each + index % each] if index // each == after else real[index]
            for index in range(len(real))
        ]
    parts = real[0].reshape(size, -1).clone()
    parts[after] = parts[target]
    return [parts.view_as(real[0])]
