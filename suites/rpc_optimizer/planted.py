"""An optimizer that fails, or is slow, where a law of ``rpc-optimizer`` plants it. Its texts name no worker."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any, ClassVar

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from everyrank.suites.compare import check
from everyrank.suites.errors import Deviation
from everyrank.suites.rpc_optimizer.arena import Arena, Parameter, error_of, eventually, loss

#: What each worker's error says: a law that looks for the worker's name must not find it in the error's own text.
WORDS = {0: "apple", 1: "pear", 2: "plum"}


class OnePicky(Exception):
    """An error whose pickle cannot be rebuilt on the other side."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


class Failing(torch.optim.SGD):
    """Fails, or is slow, on the workers where it is planted."""

    alive: ClassVar[weakref.WeakSet[Failing]] = weakref.WeakSet()
    #: What happens in the next steps on this worker; filled by ``arm``.
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
    """On an owner: its next step fails, or is slow."""
    Failing.entered.clear()
    Failing.released.clear()
    Failing.armed.append(kind)


def disarm() -> None:
    """On an owner: a slow step goes on, and none will be slow or fail."""
    Failing.armed.clear()
    Failing.released.set()


def has_entered() -> bool:
    """On an owner: whether the slow step has begun."""
    return Failing.entered.is_set()


def alive() -> int:
    """On an owner: how many optimizers of ours live there."""
    gc.collect()
    return len(Failing.alive)


def make_step(place: Arena, ours: Any, parameters: list[Parameter], step: int) -> None:
    """One step of the subject, whose errors are the law's affair."""
    with dist_autograd.context() as context_id:
        total = place.remote_loss(parameters, place.inputs(parameters, step), loss)
        dist_autograd.backward(context_id, [total])
        ours.step(context_id)


#: So many answers of each worker are waited for, before a step that has not come back is believed to wait.
_ANSWERS = 50


def step_while_held(place: Arena, ours: Any, parameters: list[Parameter], step: int, slow: int) -> list[Exception]:
    """One step, in which one owner is held: the step must not come back before. Returns what it raised."""
    place.on(slow, arm, "slow")
    raised: list[Exception] = []
    back = threading.Event()

    def work() -> None:
        try:
            raised.append(error_of(lambda: make_step(place, ours, parameters, step), "a step"))
        except Deviation:
            pass  # it did not raise
        finally:
            back.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        eventually(lambda: back.is_set() or place.on(slow, has_entered))
        for owner in [*range(place.size)] * _ANSWERS:  # by then an answer that was on its way has long arrived
            place.on(owner, has_entered)
        early, entered = back.is_set(), place.on(slow, has_entered)
    finally:
        place.on(slow, disarm)
        thread.join()
    check(entered, f"worker{slow} did not step")
    check(not early, f"step came back while worker{slow} was still at it")
    return raised
