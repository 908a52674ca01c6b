"""Two backwards in one context of ``rpc-optimizer``, with a step after each."""

from __future__ import annotations

import torch.distributed.autograd as dist_autograd
from everyrank.suites.rpc_optimizer.arena import Arena
from everyrank.suites.rpc_optimizer.law_player import optimizer, playing
from everyrank.suites.rpc_optimizer.model import Param
from everyrank.suites.rpc_optimizer.sides import Gradients


def step_after_each_backward(arena: Arena) -> None:
    """Go twice backward in one context, with a step after each time: gradients of the first time add up.

    The second time goes through the first graph again, and through another, which reaches another owner only: a
    second graph that reaches the same owner never returns (docs/findings/second-backward.md).
    """
    with playing(arena, [Param(1, (3,)), Param(0, (4,))], optimizer(variant="momentum")) as player:
        sides = player.sides
        there, here = sides.twins
        data = sides.data([0, 1], 1, linear=True)

        def step(number: int, gradients: Gradients) -> None:
            with sides.subject_acts():
                sides.ours[0].step(context_id)
            sides.step_reference(0, gradients)
            sides.stepped(number)

        with dist_autograd.context() as context_id:
            first = sides.remote_loss({0: data[0]})
            dist_autograd.backward(context_id, [first], retain_graph=True)
            step(1, {there: data[0][0]})
            dist_autograd.backward(context_id, [first])
            sides.backward(context_id, {1: data[1]})
            step(2, {there: 2 * data[0][0], here: data[1][0]})
