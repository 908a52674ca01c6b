"""The law of ``rpc-optimizer`` about an owner that dies. Its workers are not ranks, so they may be killed."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import torch.distributed.autograd as dist_autograd
from everyrank.suites.arena.workers import drive_workers
from everyrank.suites.engine.contract import Point
from everyrank.suites.rpc_optimizer import points
from everyrank.suites.rpc_optimizer.arena import Arena, error_of
from everyrank.suites.rpc_optimizer.contract import CONTRACT
from everyrank.suites.rpc_optimizer.law_player import optimizer, playing
from everyrank.suites.rpc_optimizer.model import Param
from everyrank.suites.rpc_optimizer.planted import on

#: The RPC timeout in seconds, and how long after it a client counts as hung. Only a failing case waits for these.
TIMEOUT, PATIENCE = 5.0, 15.0


@CONTRACT.law("errors.dead-owner", lambda: points.plain(1), fixtures=(), fresh=True, groups=("EVERY_OWNER",))
def dead_owner(arena: Arena, point: Point) -> None:
    """If an owner is killed, step raises within the RPC timeout and never hangs."""
    drive_workers(3, lambda: _drive(replace(arena, size=3)), TIMEOUT, TIMEOUT + PATIENCE)


def _drive(arena: Arena) -> None:
    params = [Param(1, (3,)), Param(2, (4,)), Param(0, (2,))]
    with playing(arena, params, optimizer(), compared=False) as player:
        player.step_that_moves()
        sides = player.sides
        context = dist_autograd.context()
        context_id = context.__enter__()  # never left: a context cannot be closed on a dead worker
        sides.backward(context_id, sides.data(sides.used(), 2))
        os.kill(on(2, os.getpid), signal.SIGKILL)
        error_of(lambda: sides.ours[0].step(context_id), "a step for an owner that was killed")
