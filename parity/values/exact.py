"""Run code in fp64 throughout: casts to a narrower dtype inside of a model do nothing there.

Published models cast to fp32 inside (norms, routers, rotary embeddings), which would leave 1e-7 of noise in correct
versions and hide what is smaller.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from types import CodeType
from typing import Any, ParamSpec, TypeVar

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

P = ParamSpec("P")
R = TypeVar("R")

WIDER = {
    torch.float32: torch.float64,
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex32: torch.complex128,
}
_CASTS = (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16)
#: Files that keep factors in fp32: a GradScaler's kernel takes no others. They are powers of two.
_SCALERS = ("grad_scaler.py", "sharded_grad_scaler.py")
_BETWEEN = (os.path.dirname(os.path.dirname(__file__)) + os.sep, torch._ops.__file__, torch._tensor.__file__)


class _StayWide(TorchFunctionMode):
    """Make casts of an fp64 tensor to a narrower dtype return it as it is."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        wide = args and isinstance(args[0], torch.Tensor) and args[0].dtype == torch.float64
        if wide and func in _CASTS and not is_of_a_scaler():
            return args[0]
        if wide and func in (torch.Tensor.to, torch.Tensor.type):
            args = (args[0], *(_wider(each) for each in args[1:]))
        if wide and isinstance(kwargs.get("dtype"), torch.dtype):
            kwargs = {**kwargs, "dtype": _wider(kwargs["dtype"])}
        return func(*args, **kwargs)


def is_of_a_scaler() -> bool:
    """Return whether a GradScaler is the caller."""
    return os.path.basename(caller().co_filename) in _SCALERS


def caller() -> CodeType:
    """Return the code that calls the function of torch's in which a mode of ours stands."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        frame = frame.f_back
    return frame.f_code


def is_narrow(dtype: torch.dtype) -> bool:
    """Return whether values of a dtype are rounded more than those of fp64; those of a quantized tensor are."""
    return dtype in WIDER or str(dtype).startswith(("torch.float8", "torch.float4", "torch.q"))


def _wider(value: Any) -> Any:
    dtype = value.dtype if isinstance(value, torch.Tensor) else value
    return WIDER.get(dtype, value) if isinstance(dtype, torch.dtype) else value


def aside(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function that looks on at a run do nothing with the mode: it stays in its dtypes, and is called often."""

    @functools.wraps(function)
    def apart(*arguments: P.args, **named: P.kwargs) -> R:
        with torch._C.DisableTorchFunction():
            return function(*arguments, **named)

    return apart


@contextlib.contextmanager
def running_in(dtype: torch.dtype, exact: bool) -> Iterator[None]:
    """Make this dtype the default; if exact, let nothing leave it."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with _StayWide() if exact else contextlib.nullcontext():
            yield
    finally:
        torch.set_default_dtype(before)


def drop_mixed_precision(modules: Iterable[nn.Module]) -> None:
    """Take the precision policy off FSDP2's modules: it belongs to the user's dtype, not to the pass in fp64."""
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy

    plain = MixedPrecisionPolicy()
    for module in modules:
        for each in module.modules():
            if not isinstance(each, FSDPModule):
                continue
            state: Any = each._get_fsdp_state()
            state._mp_policy = plain
            for group in param_groups(state):
                group.mp_policy = plain
                for parameter in group.fsdp_params:
                    parameter.mp_policy = plain


def has_mixed_precision(modules: Iterable[nn.Module]) -> torch.dtype | None:
    """Return the dtype in which FSDP2's modules compute, if it is another than their parameters'."""
    from torch.distributed.fsdp import FSDPModule

    for module in modules:
        for each in module.modules():
            if isinstance(each, FSDPModule):
                policy = each._get_fsdp_state()._mp_policy
                if policy.param_dtype is not None:
                    found: torch.dtype = policy.param_dtype
                    return found
    return None


def param_groups(state: Any) -> list[Any]:
    """Return the groups of parameters: torch 2.14 has several in a state, 2.13 one."""
    several = getattr(state, "_fsdp_param_groups", None)
    if several is not None:
        return list(several)
    return [state._fsdp_param_group] if state._fsdp_param_group is not None else []
