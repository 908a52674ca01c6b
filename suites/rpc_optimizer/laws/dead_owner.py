"""The law of ``rpc-optimizer`` about an owner that dies. Its workers are not ranks, so they may be killed."""

from __future__ import annotations

import os
import signal

import torch.distributed.autograd as dist_autograd
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.arena.workers import drive_workers
from everyrank.suites.engine.contract import Point
from everyrank.suites.rpc_optimizer import points
from everyrank.suites.rpc_optimizer.arena import Arena, error_of, loss
from everyrank.suites.rpc_optimizer.contract import CONTRACT
from everyrank.suites.rpc_optimizer.laws.training import SGD

#: The RPC timeout in seconds, and how long after it a client counts as hung. Only a failing case waits for these.
TIMEOUT, PATIENCE = 5.0, 15.0


@CONTRACT.law("errors.dead-owner", lambda: points.plain(1), fixtures=(), fresh=True, groups=("EVERY_OWNER",))
def dead_owner(arena: Arena, point: Point) -> None:
    """If an owner is killed, step raises within the RPC timeout and never hangs."""
    drive_workers(3, lambda: _drive(Arena(arena.subject, point, 3, arena.seed)), TIMEOUT, TIMEOUT + PATIENCE)


def _drive(arena: Arena) -> None:
    parameters = arena.own([(1, (3,)), (2, (4,)), (0, (2,))])
    with subject_acts():
        ours = arena.build(SGD, parameters, lr=0.1)
    arena.step_that_moves(ours, parameters)
    context = dist_autograd.context()
    context_id = context.__enter__()  # never left: a context cannot be closed on a dead worker
    dist_autograd.backward(context_id, [arena.remote_loss(parameters, arena.inputs(parameters, 2), loss)])
    os.kill(arena.on(2, os.getpid), signal.SIGKILL)
    error_of(lambda: ours.step(context_id), "a step for an owner that was killed")
