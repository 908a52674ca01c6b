"""What an optimizer of ``rpc-optimizer`` may have besides its step: what all contracts ask for, and more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed.autograd as dist_autograd
from everyrank.suites.arena import surface
from everyrank.suites.compare.comparison import check


@dataclass(kw_only=True)
class RpcPair(surface.Pair):
    """A subject, its reference, and what else the parts of this contract need."""

    fresh: Callable[[], Any]
    """Builds the subject again, over the same parameters."""
    backward: Callable[[int], torch.Tensor]
    """Runs a backward with new data in this context, and returns its loss."""
    reference_step: Callable[[], None]
    """Steps the reference with the data of the last backward."""


def state_dict(pair: RpcPair) -> Iterator[None]:
    """Check that a fresh optimizer that loads the state dict trains on as if there had been no other."""
    yield
    saved = pair.ours.state_dict()
    fresh = pair.fresh()
    fresh.load_state_dict(saved)
    pair.ours = fresh
    yield


def closure(pair: RpcPair) -> Iterator[None]:
    """Check that a closure after the context is evaluated."""
    yield from _closures(pair, lambda ours, context_id, evaluate: ours.step(context_id, evaluate))


def closure_by_name(pair: RpcPair) -> Iterator[None]:
    """Check that a closure given by name is evaluated."""
    yield from _closures(pair, lambda ours, context_id, evaluate: ours.step(context_id, closure=evaluate))


def closure_alone(pair: RpcPair) -> Iterator[None]:
    """Check that a closure without a context is evaluated."""
    yield from _closures(pair, lambda ours, context_id, evaluate: ours.step(evaluate))


def _closures(pair: RpcPair, give: Callable[[Any, int, Callable[[], Any]], Any]) -> Iterator[None]:
    while True:
        yield
        _step_with_closure(pair, give)


def _step_with_closure(pair: RpcPair, give: Callable[[Any, int, Callable[[], Any]], Any]) -> None:
    """Do one step whose gradients are made by the closure alone."""
    losses: list[torch.Tensor] = []
    with dist_autograd.context() as context_id:

        def evaluate() -> torch.Tensor:
            # A second backward in one context may never come back.
            losses.append(losses[0] if losses else pair.backward(context_id))
            return losses[0]

        returned = give(pair.ours, context_id, evaluate)
    check(len(losses) == 1, f"step took a closure and evaluated it {len(losses)} times, torch.optim does once")
    is_loss = isinstance(returned, (int, float, torch.Tensor)) and float(returned) == float(losses[0])
    check(is_loss, f"step took a closure and returned {returned!r}, not its loss {float(losses[0]):g}")
    pair.reference_step()


#: Each is used alone: a step with a closure and a fresh optimizer are not what the other parts count on.
MORE: Mapping[str, Callable[[RpcPair], Iterator[None]]] = {
    "state-dict": state_dict,
    "closure": closure,
    "closure-by-name": closure_by_name,
    "closure-alone": closure_alone,
}

PARTS: Mapping[str, Callable[[RpcPair], Iterator[None]]] = {**surface.PARTS, **MORE}
