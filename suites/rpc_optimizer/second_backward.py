"""Two backwards in one context of ``rpc-optimizer``, with a step after each."""

from __future__ import annotations

from typing import Any

import torch.distributed.autograd as dist_autograd
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.rpc_optimizer.arena import Arena, linear_loss
from torch.optim import SGD


def step_after_each_backward(arena: Arena) -> None:
    """Go twice backward in one context, with a step after each time: gradients of the first time add up.

    The second time goes through the first graph again, and through another, which reaches another owner only: a
    second graph that reaches the same owner never returns (docs/findings/second-backward.md).
    """
    there, here = parameters = arena.own([(1, (3,)), (0, (4,))])
    keywords: dict[str, Any] = {"lr": 0.1, "momentum": 0.9}
    with subject_acts():
        ours = arena.build(SGD, parameters, **keywords)
    reference = SGD([param.twin for param in parameters], **keywords)
    comparison = arena.comparison()
    data = arena.inputs(parameters, 1)
    with dist_autograd.context() as context_id:
        first = arena.remote_loss([there], data[:1], linear_loss)
        dist_autograd.backward(context_id, [first], retain_graph=True)
        with subject_acts():
            ours.step(context_id)
        there.twin.grad = data[0].clone()
        reference.step()
        comparison.step(1, arena.values(), arena.twins())
        dist_autograd.backward(context_id, [first])
        dist_autograd.backward(context_id, [arena.remote_loss([here], data[1:], linear_loss)])
        with subject_acts():
            ours.step(context_id)
    there.twin.grad, here.twin.grad = 2 * data[0], data[1].clone()
    reference.step()
    comparison.step(2, arena.values(), arena.twins())
    comparison.verdict()
