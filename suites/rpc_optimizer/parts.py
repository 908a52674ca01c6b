"""What an optimizer of ``rpc-optimizer`` may have besides its step: what all contracts ask for, and more."""

from __future__ import annotations

import functools
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


def _closures(kind: str) -> Callable[[RpcPair], Iterator[None]]:
    """Return the part that checks that a closure given to ``step`` in this way is evaluated."""

    def use(pair: RpcPair) -> Iterator[None]:
        while True:
            yield
            with dist_autograd.context() as context_id:
                evaluated_once(pair.ours, kind, context_id, functools.partial(pair.backward, context_id))
            pair.reference_step()

    return use


#: How a closure is given to a step.
_GIVEN: Mapping[str, Callable[[Any, int, Callable[[], Any]], Any]] = {
    "closure": lambda ours, context_id, evaluate: ours.step(context_id, evaluate),
    "closure-by-name": lambda ours, context_id, evaluate: ours.step(context_id, closure=evaluate),
    "closure-alone": lambda ours, context_id, evaluate: ours.step(evaluate),
}


def evaluated_once(ours: Any, kind: str, context_id: int, backward: Callable[[], torch.Tensor]) -> None:
    """Do one step whose gradients a closure makes; check that it is evaluated, and its loss returned."""
    losses: list[torch.Tensor] = []

    def evaluate() -> torch.Tensor:
        # A second backward in one context may never come back.
        losses.append(losses[0] if losses else backward())
        return losses[0]

    returned = _GIVEN[kind](ours, context_id, evaluate)
    check(len(losses) == 1, f"step took a closure and evaluated it {len(losses)} times, torch.optim does once")
    is_loss = isinstance(returned, (int, float, torch.Tensor)) and float(returned) == float(losses[0])
    check(is_loss, f"step took a closure and returned {returned!r}, not its loss {float(losses[0]):g}")


#: Each is used alone: a step with a closure and a fresh optimizer are not what the other parts count on.
MORE: Mapping[str, Callable[[RpcPair], Iterator[None]]] = {
    "state-dict": state_dict,
    **{kind: _closures(kind) for kind in _GIVEN},
}
