"""An optimizer that fails or is slow on workers chosen by a law of ``rpc-optimizer``. Its errors name no worker."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any, ClassVar

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from everyrank.suites.compare.comparison import check
from everyrank.suites.errors import Deviation
from everyrank.suites.rpc_optimizer.arena import Arena, Parameter, error_of, eventually, loss, resets

#: The text of each worker's error. It must not contain the worker's name, for which laws look in the error.
WORDS = {0: "apple", 1: "pear", 2: "plum"}


class OnePicky(Exception):
    """An error that can be pickled but not unpickled."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


class Failing(torch.optim.SGD):
    """SGD that fails or is slow on the workers that a law chooses."""

    alive: ClassVar[weakref.WeakSet[Failing]] = weakref.WeakSet()
    #: The faults of the next steps on this worker; filled by ``arm``.
    armed: ClassVar[list[str]] = []
    entered, released = threading.Event(), threading.Event()

    def __init__(self, params: Any, lr: float = 0.1, at_construction: tuple[str, ...] = ()) -> None:
        super().__init__(params, lr=lr, momentum=0.9)
        Failing.alive.add(self)
        if rpc.get_worker_info().name in at_construction:
            raise ValueError("cannot be built: sabotaged")

    def step(self, closure: Any = None) -> Any:
        kind = Failing.armed.pop(0) if Failing.armed else ""
        if kind == "slow":
            Failing.entered.set()
            Failing.released.wait()
        elif kind == "unpicklable":
            raise OnePicky("step", "sabotaged")
        elif kind:
            raise ValueError(f"step sabotaged: {kind}")
        return super().step(closure)


def arm(kind: str) -> None:
    """Let the next step on this owner fail or be slow."""
    Failing.entered.clear()
    Failing.released.clear()
    Failing.armed.append(kind)


def disarm() -> None:
    """Let a slow step on this owner go on, and let no further step fail or be slow."""
    Failing.armed.clear()
    Failing.released.set()


resets.append(disarm)


def has_entered() -> bool:
    """Return whether the slow step on this owner has begun."""
    return Failing.entered.is_set()


def alive() -> int:
    """Return how many of these optimizers exist on this owner."""
    gc.collect()
    return len(Failing.alive)


def make_step(arena: Arena, ours: Any, parameters: list[Parameter], step: int) -> None:
    """Do one step of the subject. Let its errors pass: the law handles them."""
    with dist_autograd.context() as context_id:
        total = arena.remote_loss(parameters, arena.inputs(parameters, step), loss)
        dist_autograd.backward(context_id, [total])
        ours.step(context_id)


#: How many answers of each other worker must arrive before a step that has not returned counts as waiting.
_ANSWERS = 20


def step_while_held(arena: Arena, ours: Any, parameters: list[Parameter], step: int, slow: int) -> list[Exception]:
    """Do one step while one owner is held, and check that it does not return earlier. Return the errors it raised."""
    arena.on(slow, arm, "slow")
    raised: list[Exception] = []
    returned = threading.Event()

    def work() -> None:
        try:
            raised.append(error_of(lambda: make_step(arena, ours, parameters, step), "a step"))
        except Deviation:
            pass  # it did not raise
        finally:
            returned.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        eventually(lambda: returned.is_set() or arena.on(slow, has_entered))
        for owner in [*range(1, arena.size)] * _ANSWERS:  # by then an answer that was already sent has arrived
            arena.on(owner, has_entered)
        early, entered = returned.is_set(), arena.on(slow, has_entered)
    finally:
        arena.on(slow, disarm)
        thread.join()
    check(entered, f"worker{slow} did not step")
    check(not early, f"step returned while worker{slow} was still stepping")
    return raised
