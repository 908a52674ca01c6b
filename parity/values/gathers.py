"""Collectives whose results get lost: what comes from other ranks gives no gradient back, or nobody takes it."""

from __future__ import annotations

import contextlib
import dis
import inspect
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.distributed.nn
from everyrank.parity.values.lines import line_now

#: The collectives, whose argument ``tensor`` goes to other ranks. Those into one tensor refuse one with a gradient.
_NAMES = ("all_gather", "all_reduce")


class _Gathered(torch.autograd.Function):
    """All ranks' values, one after another, which give their gradients back."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        parts = [torch.empty_like(values) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, values.contiguous(), group=group)
        return torch.stack(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total, group=ctx.group)
        return total[dist.get_rank(ctx.group)], None


@contextlib.contextmanager
def cut_gradients(lines: list[str], *, healed: bool = False) -> Iterator[None]:
    """Note the collectives that cut a gradient, and their lines; ``healed`` puts gradients there that go on."""
    with contextlib.ExitStack() as stack:
        for name in _NAMES:
            watched = _watched(getattr(dist, name), name, lines, healed)
            for module in (dist, dist.distributed_c10d):
                stack.enter_context(patch.object(module, name, watched))
        yield


def _watched(original: Any, name: str, lines: list[str], healed: bool) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def watched(*arguments: Any, **named: Any) -> Any:
        bound = signature.bind(*arguments, **named)
        bound.apply_defaults()
        values = bound.arguments["tensor"]
        # What a number is reduced for is a log.
        if not torch.is_grad_enabled() or values.grad_fn is None or values.numel() == 1:
            return original(*arguments, **named)
        line = line_now()
        lines.append(f"`{name}`{line and f' at {line}'}")
        is_sum = bound.arguments.get("op", dist.ReduceOp.SUM) == dist.ReduceOp.SUM
        if not healed or not is_sum or bound.arguments["async_op"]:
            return original(*arguments, **named)
        gathered: torch.Tensor = _Gathered.apply(values.clone(), bound.arguments["group"])
        if name == "all_gather":
            for part, other in zip(bound.arguments["tensor_list"], gathered, strict=True):
                part.copy_(other)
        else:
            values.copy_(gathered.sum(0))
        return None

    return watched


@contextlib.contextmanager
def dropped_results(lines: list[str], *, healed: bool = False) -> Iterator[None]:
    """Note the calls of torch's `all_reduce` with a gradient whose result nobody takes; ``healed`` puts it in place.

    Unlike the function of `torch.distributed`, it returns the sum and leaves what it is given as it was.
    """
    with contextlib.ExitStack() as stack:
        for module in (
            torch.distributed.nn,
            torch.distributed.nn.functional,
            torch.distributed._functional_collectives,
        ):
            stack.enter_context(patch.object(module, "all_reduce", _taken(module.all_reduce, lines, healed)))
        yield


def _taken(original: Any, lines: list[str], healed: bool) -> Callable[..., Any]:
    def watched(tensor: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        result = original(tensor, *arguments, **named)
        if _is_dropped(sys._getframe(1)):
            line = line_now()
            lines.append(f"`{original.__module__}.all_reduce`{line and f' at {line}'}")
            if healed:
                tensor.copy_(result)
        return result

    return watched


def _is_dropped(caller: FrameType) -> bool:
    """Return whether the caller throws away what the call that it is in returns."""
    after = (each for each in dis.get_instructions(caller.f_code) if each.offset > caller.f_lasti)
    following = next((each.opname for each in after if each.opname not in ("CACHE", "PRECALL", "CALL")), "")
    return following == "POP_TOP"
