"""Run a script all in double, whatever dtype it names: what torch makes is widened where it is made.

Casts that a script writes are taken by the mode that keeps fp64 wide in `everyrank.parity`. Beneath it a second mode
sees each operator, inside of torch's own functions and in backwards, too: it gives factories fp64, widens data that
comes from elsewhere, and notes what stays narrow.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from everyrank.parity.script.replaced import around
from everyrank.parity.values.exact import WIDER, caller, is_narrow, is_of_a_scaler, running_in
from everyrank.parity.values.lines import line_of_caller
from everyrank.suites.compare.patterns.texts import short
from torch import Tensor
from torch.utils import _pytree as tree
from torch.utils._python_dispatch import TorchDispatchMode

Note = Callable[[str], None]

#: Operators of other packages are looked into: torch's own compute in the dtype that they are given.
_OWN = frozenset({"aten", "prim", "prims", "c10d", "_c10d_functional", "_dtensor", "fsdp", "symm_mem", "profiler"})
_WAITING = ("c10d", "_c10d_functional")
_NARROWED = {torch.float64: torch.float32, torch.complex128: torch.complex64}
_view_as = torch.ops.aten.view.dtype


def start(note: Note) -> None:
    """Let all that this process makes from now on be in double; call a function with what cannot be."""

    def begin(inner: Callable[..., Any], thread: threading.Thread) -> None:
        with _running(note):  # a mode is a thread's own
            inner(thread)

    modes = contextlib.ExitStack()
    modes.enter_context(_running(note))
    atexit.register(modes.close)
    _leave_policies()
    _widen_what_is_read()
    around(threading.Thread, "_bootstrap_inner", begin)


@contextlib.contextmanager
def _running(note: Note) -> Iterator[None]:
    with running_in(torch.float64, exact=True), _Double(note):
        yield


class _Double(TorchDispatchMode):
    """Gives each operator fp64 in place of narrower dtypes, and notes which one makes something narrow."""

    def __init__(self, note: Note) -> None:
        super().__init__()
        self._note = note
        self._inside = ""
        """The operator of another package that runs now."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and to import it takes two seconds

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if is_of_a_scaler() or caller() is _rebuild.__code__:
            return func(*args, **named)
        if self._inside:
            result = func(*args, **named)
            self._look(self._inside, "computes in", result)
            return result
        if func is not _view_as:
            args, named = _widened(func, args, named)
        try:
            result = self._called(func, args, named)
        except Exception:
            self._try_narrow(func, args, named)
            raise
        if func is _view_as and not args[0].is_floating_point():
            return tree.tree_map(_wide, result)  # the bytes of a file
        self._look(func.name().partition(".")[0], "returns", result)
        return result

    def _called(self, func: Any, args: Any, named: Any) -> Any:
        """Call an operator; look into it, if it is of another package."""
        tensors = [each for each in tree.tree_leaves((args, named)) if isinstance(each, Tensor)]
        if func.namespace in _OWN or not all(_is_plain(each) for each in tensors):
            return func(*args, **named)
        self._inside = func.name().partition(".")[0]
        try:
            with self:
                return func.redispatch(torch._C.DispatchKeySet(torch._C.DispatchKey.CPU), *args, **named)
        finally:
            self._inside = ""

    def _look(self, name: str, verb: str, result: Any) -> None:
        for each in tree.tree_leaves(result):
            if isinstance(each, Tensor) and is_narrow(each.dtype):
                self._note(f"`{name.removeprefix('aten::')}` {verb} {short(each.dtype)} ({line_of_caller()})")

    def _try_narrow(self, func: Any, args: Any, named: Any) -> None:
        """Note that an operator takes no fp64, if it takes the same in fp32."""
        if func.namespace in _WAITING:
            return
        args, named = tree.tree_map(_narrow, (args, named))
        with contextlib.suppress(Exception):
            func(*args, **named)
            self._note(f"`{func.name().partition('.')[0].removeprefix('aten::')}` takes no fp64 ({line_of_caller()})")


def _is_plain(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, torch.nn.Parameter) and tensor.device.type == "cpu"


def _wide(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return WIDER.get(value, value)
    return value.to(WIDER[value.dtype]) if isinstance(value, Tensor) and value.dtype in WIDER else value


def _narrow(value: Any) -> Any:
    return value.to(_NARROWED.get(value.dtype, value.dtype), copy=True) if isinstance(value, Tensor) else value


def _widened(func: Any, args: Any, named: Any) -> tuple[Any, Any]:
    """Return the arguments of an operator in double, but for what it writes to."""
    leaves = tree.tree_leaves((args, named))
    if not any((each if isinstance(each, torch.dtype) else getattr(each, "dtype", None)) in WIDER for each in leaves):
        return args, named
    written = {
        each.name for each in func._schema.arguments if each.alias_info is not None and each.alias_info.is_write
    }
    names = [each.name for each in func._schema.arguments]
    return (
        tuple(
            each if name in written else tree.tree_map(_wide, each) for name, each in zip(names, args, strict=False)
        ),
        {name: each if name in written else tree.tree_map(_wide, each) for name, each in named.items()},
    )


# --- what is no operator ---------------------------------------------------------------------------

_rebuild = torch._utils._rebuild_tensor


def _widen_what_is_read() -> None:
    """Widen what is unpickled: of torch.load, and of a loader's workers."""

    @functools.wraps(_rebuild)
    def rebuild(*given: Any) -> Any:
        return _wide(_rebuild(*given))

    torch._utils._rebuild_tensor = rebuild


def _leave_policies() -> None:
    """Let no autocast, no default dtype and no policy of mixed precision name another dtype."""
    from torch.distributed.fsdp import MixedPrecision, MixedPrecisionPolicy
    from torch.nn.parallel import DistributedDataParallel

    def policy(inner: Callable[..., Any], self: Any, *given: Any, **named: Any) -> None:
        inner(self, *given, **named)
        for name in ("param_dtype", "reduce_dtype", "buffer_dtype", "output_dtype"):
            if hasattr(self, name):
                object.__setattr__(self, name, None)  # one of them is frozen

    def wrapper(inner: Callable[..., Any], self: Any, *given: Any, **named: Any) -> None:
        inner(self, *given, **{name: each for name, each in named.items() if name != "mixed_precision"})

    def autocast(inner: Callable[..., Any], *given: Any) -> None:
        inner(*given[:-1], False)

    def nothing(inner: Callable[..., Any], *given: Any) -> None:
        return None

    around(MixedPrecision, "__init__", policy)
    around(MixedPrecisionPolicy, "__init__", policy)
    around(DistributedDataParallel, "__init__", wrapper)
    around(torch, "set_autocast_enabled", autocast)
    around(torch, "set_autocast_cpu_enabled", autocast)
    around(torch, "set_default_dtype", nothing)
    around(torch, "set_default_tensor_type", nothing)
