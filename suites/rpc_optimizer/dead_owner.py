"""The law of ``rpc-optimizer`` about an owner that dies. Its workers are processes of its own, which may."""

from __future__ import annotations

import os
import signal

import torch.distributed.autograd as dist_autograd
from everyrank.suites.acts import subject_acts
from everyrank.suites.contract import Point
from everyrank.suites.rpc_optimizer import points
from everyrank.suites.rpc_optimizer.arena import Arena, error_of, loss
from everyrank.suites.rpc_optimizer.laws import CONTRACT, SGD
from everyrank.suites.workers import drive_workers

#: The RPC timeout, and how long after it a client that has not come back hangs. Only a failing case waits for them.
TIMEOUT, PATIENCE = 5.0, 15.0


@CONTRACT.law("errors.dead-owner", lambda: points.plain(1), fixtures=(), fresh=True)
def dead_owner(place: Arena, point: Point) -> None:
    """A killed owner gives an error within the RPC timeout, never a hang."""
    drive_workers(3, lambda: _drive(Arena(place.subject, point, 3, place.seed)), TIMEOUT, TIMEOUT + PATIENCE)


def _drive(place: Arena) -> None:
    parameters = place.own([(1, (3,)), (2, (4,)), (0, (2,))])
    with subject_acts():
        ours = place.build(SGD, parameters, lr=0.1)
    place.step_that_moves(ours, parameters)
    context = dist_autograd.context()
    context_id = context.__enter__()  # and never left: it cannot be closed on a worker that is dead
    dist_autograd.backward(context_id, [place.remote_loss(parameters, place.inputs(parameters, 2), loss)])
    os.kill(place.on(2, os.getpid), signal.SIGKILL)
    error_of(lambda: ours.step(context_id), "a step for an owner that was killed")
