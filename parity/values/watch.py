"""Watch what the modules of a model return, and what a clip does, without the model's help."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from everyrank.parity.values.tree import tensors
from torch import nn
from torch.nn.utils import clip_grad

#: An output: the module's name, the number of the call, the number of the tensor in what it returned.
Output = tuple[str, int, int]

#: An output or its gradient: the kind, and the output of this rank.
Seat = tuple[str, Output]

#: What is called with an output, with its value, and whether the module has returned what it was given.
Watcher = Callable[[Output, torch.Tensor, bool], torch.Tensor | None]


@contextlib.contextmanager
def outputs(
    named: Iterable[tuple[str, nn.Module]], watcher: Watcher, begins: Callable[[str], None] = lambda name: None
) -> Iterator[None]:
    """Show the watcher each output of each module, in the order of the calls' ends; of a call that begins, its name.

    Recomputation in a backward does not count: it repeats what was seen.
    """
    calls: dict[str, int] = {}

    def hook_for(name: str) -> Callable[[nn.Module, Any, Any], Any]:
        def hook(module: nn.Module, inputs: Any, returned: Any) -> Any:
            if torch._C._current_graph_task_id() != -1:
                return None
            call = calls[name] = calls.get(name, -1) + 1
            given = {id(each) for each in tensors(inputs)}
            replaced = [
                watcher((name, call, number), value, id(value) in given)
                for number, value in enumerate(tensors(returned))
            ]
            return replaced[0] if isinstance(returned, torch.Tensor) and replaced else None

        return hook

    def start_of(name: str) -> Callable[[nn.Module, Any], None]:
        def start(*_: Any) -> None:
            if torch._C._current_graph_task_id() == -1:
                begins(name)

        return start

    with contextlib.ExitStack() as hooks:
        for name, module in named:
            # A style's own hooks stand between these two.
            hooks.enter_context(module.register_forward_pre_hook(start_of(name), prepend=True))
            hooks.enter_context(module.register_forward_hook(hook_for(name)))
        yield


@contextlib.contextmanager
def inputs(roots: Iterable[nn.Module], watcher: Callable[[Any], None]) -> Iterator[None]:
    """Show the watcher the inputs of each call of these modules."""

    def hook(module: nn.Module, arguments: Any, named: Any) -> None:
        watcher((arguments, named))

    with contextlib.ExitStack() as hooks:
        for root in roots:
            hooks.enter_context(root.register_forward_pre_hook(hook, with_kwargs=True, prepend=True))
        yield


@contextlib.contextmanager
def draws(named: Iterable[tuple[str, nn.Module]]) -> Iterator[list[str]]:
    """Note the names of modules that draw random numbers, the innermost first."""
    drawing: list[str] = []
    states: list[torch.Tensor] = []

    def ends(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(*_: Any) -> None:
            if not torch.equal(states.pop(), torch.get_rng_state()):
                drawing.append(name)

        return hook

    with contextlib.ExitStack() as hooks:
        for name, module in named:
            hooks.enter_context(module.register_forward_pre_hook(lambda *_: states.append(torch.get_rng_state())))
            hooks.enter_context(module.register_forward_hook(ends(name)))
        yield drawing


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
def clamps(before: Callable[[float], None]) -> Iterator[None]:
    """Call the function before gradients are clipped by value, with the largest value that is left."""
    original: Any = clip_grad.clip_grad_value_

    def watched(parameters: Any, clip_value: float, *arguments: Any, **named: Any) -> None:
        before(float(clip_value))
        clip(parameters, clip_value, *arguments, **named)

    # The function stands in a cell of what users import, under whatever name; else names are replaced.
    clip = getattr(original, "__wrapped__", original)
    cell = next((each for each in original.__closure__ or () if each.cell_contents is clip), None)
    if cell is None:
        with (
            patch.object(clip_grad, "clip_grad_value_", watched),
            patch.object(torch.nn.utils, "clip_grad_value_", watched),
        ):
            yield
        return
    cell.cell_contents = watched
    try:
        yield
    finally:
        cell.cell_contents = clip


@contextlib.contextmanager
def steps(optimizers: Sequence[Any], before: Callable[[], None], after: Callable[[], None]) -> Iterator[None]:
    """Call a function in the first of the optimizers' steps once gradients are made, and another after the last.

    Gradients are made before a step, or by the first run of its closure.
    """
    waiting: set[int] = set()

    def begins(number: int) -> None:
        if number in waiting:
            return
        if waiting:
            after()  # The others did not step.
        waiting.update(range(len(optimizers)))
        before()

    def ends(number: int) -> None:
        waiting.discard(number)
        if not waiting:
            after()

    with contextlib.ExitStack() as stack:
        for number, optimizer in enumerate(optimizers):
            own = vars(optimizer).get("step")
            hooked = getattr(type(optimizer).step, "hooked", False) and (
                own is None or hasattr(own, "_wrapped_by_lr_sched")
            )
            watched = _hooked if hooked else _replaced
            stack.enter_context(
                watched(optimizer, functools.partial(begins, number), functools.partial(ends, number))
            )
        yield
    if waiting:
        after()


@contextlib.contextmanager
def _hooked(
    optimizer: torch.optim.Optimizer, before: Callable[[], None], after: Callable[[], None]
) -> Iterator[None]:
    """Watch by torch's own hooks: its schedulers look at the method ``step`` itself."""
    depth = 0

    def begins(_: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, Any] | None:
        nonlocal depth
        depth += 1
        # A class whose step calls that of its parent runs the hooks of both.
        return _with_closure(arguments, named, before) if depth == 1 else None

    def ends(*_: Any) -> None:
        nonlocal depth
        depth -= 1
        if depth == 0:
            after()

    with optimizer.register_step_pre_hook(begins), optimizer.register_step_post_hook(ends):
        yield


@contextlib.contextmanager
def _replaced(optimizer: Any, before: Callable[[], None], after: Callable[[], None]) -> Iterator[None]:
    """Watch an optimizer that runs no hooks: a method stands in the place of its own."""
    step, own = optimizer.step, vars(optimizer).get("step")
    is_over = False

    def watched(_: Any, *arguments: Any, **named: Any) -> Any:
        if is_over:
            return step(*arguments, **named)
        arguments, named = _with_closure(arguments, named, before)
        returned = step(*arguments, **named)
        after()
        return returned

    method = optimizer.step = types.MethodType(watched, optimizer)
    try:
        yield
    finally:
        # A scheduler that was made meanwhile has put its own method around this one, which then does nothing more.
        is_over = True
        if vars(optimizer).get("step") is method:
            if own is None:
                del optimizer.step
            else:
                optimizer.step = own


def _with_closure(
    arguments: tuple[Any, ...], named: dict[str, Any], before: Callable[[], None]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a step, with a closure that calls the function when it has run the first time.

    Without a closure gradients are made already, and the function is called here.
    """
    closure = next((each for each in (*arguments, *named.values()) if callable(each)), None)
    if closure is None:
        before()
        return arguments, named
    runs = itertools.count()

    @functools.wraps(closure)
    def watched() -> Any:
        returned = closure()
        if next(runs) == 0:
            before()
        return returned

    return (
        tuple(watched if each is closure else each for each in arguments),
        {name: watched if each is closure else each for name, each in named.items()},
    )


def needs_closure(optimizer: Any) -> bool:
    """Return whether an optimizer makes no step without a closure, as LBFGS."""
    parameter = inspect.signature(optimizer.step).parameters.get("closure")
    return parameter is not None and parameter.default is inspect.Parameter.empty
