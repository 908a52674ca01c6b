"""Watch what the modules of a model return, and what a clip does, without the model's help."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from everyrank.parity.values.tree import tensors
from torch import nn
from torch.nn.utils import clip_grad

#: An output: the module's name, the number of the call, the number of the tensor in what it returned.
Output = tuple[str, int, int]

Watcher = Callable[[Output, torch.Tensor], torch.Tensor | None]


@contextlib.contextmanager
def outputs(named: Iterable[tuple[str, nn.Module]], watcher: Watcher) -> Iterator[None]:
    """Show the watcher each output of each module, in the order of the calls' ends.

    Recomputation in a backward does not count: it repeats what was seen.
    """
    calls: dict[str, int] = {}

    def hook_for(name: str) -> Callable[[nn.Module, Any, Any], Any]:
        def hook(module: nn.Module, inputs: Any, returned: Any) -> Any:
            if torch._C._current_graph_task_id() != -1:
                return None
            call = calls[name] = calls.get(name, -1) + 1
            replaced = [watcher((name, call, number), value) for number, value in enumerate(tensors(returned))]
            return replaced[0] if isinstance(returned, torch.Tensor) and replaced else None

        return hook

    handles = [module.register_forward_hook(hook_for(name)) for name, module in named]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def inputs(roots: Iterable[nn.Module], watcher: Callable[[Any], None]) -> Iterator[None]:
    """Show the watcher the inputs of each call of these modules."""

    def hook(module: nn.Module, arguments: Any, named: Any) -> None:
        watcher((arguments, named))

    handles = [root.register_forward_pre_hook(hook, with_kwargs=True, prepend=True) for root in roots]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def watchable(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules below a root, but not what torch.compile has made one function of."""
    inside: list[str] = []
    for name, module in root.named_modules():
        if any(name.startswith(prefix) for prefix in inside):
            continue
        yield name, module
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            inside.append(f"{name}." if name else "")


@dataclass(frozen=True)
class Clip:
    """A clip of gradients by torch's function."""

    most: float
    norm: Any


@contextlib.contextmanager
def clips(before: Callable[[Clip], None]) -> Iterator[None]:
    """Call the function before gradients are clipped, with the norm that was found."""
    clip = clip_grad._clip_grads_with_norm_

    def watched(parameters: Any, max_norm: float, total_norm: torch.Tensor, foreach: bool | None = None) -> None:
        # The norm may be the very tensor that is changed later.
        before(Clip(float(max_norm), total_norm.detach().clone()))
        clip(parameters, max_norm, total_norm, foreach)

    # `clip_grad_norm_` ends there, however a user imported it; the other name is the function itself.
    with (
        patch.object(clip_grad, "_clip_grads_with_norm_", watched),
        patch.object(torch.nn.utils, "clip_grads_with_norm_", watched),
    ):
        yield


@contextlib.contextmanager
def steps(optimizer: Any, before: Callable[[], None]) -> Iterator[None]:
    """Call the function before each step of the optimizer."""
    step = optimizer.step

    def watched(*arguments: Any, **named: Any) -> Any:
        before()
        return step(*arguments, **named)

    optimizer.step = watched
    try:
        yield
    finally:
        # The instance's own attribute hid the method of its class.
        with contextlib.suppress(AttributeError):
            del optimizer.step
