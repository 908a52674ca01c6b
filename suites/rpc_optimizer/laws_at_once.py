"""The laws of ``rpc-optimizer`` about what runs at the same time, and what is left behind."""

from __future__ import annotations

import gc
import random
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from everyrank.suites.acts import subject_acts
from everyrank.suites.compare import check
from everyrank.suites.contract import Point
from everyrank.suites.rpc_optimizer import points
from everyrank.suites.rpc_optimizer.arena import Arena, Parameter, acting, eventually
from everyrank.suites.rpc_optimizer.laws import CONTRACT, SGD
from torch.distributed.rpc import _rref_context_get_debug_info

law = CONTRACT.law

#: A step with weight decay reads a parameter and writes it later. So large that this takes longer than the other
#: clients are late, and longer than a core's turn: of steps that are not serialized, one reads what another is about
#: to change, on one core too.
LARGE = (1 << 21,)
#: With gradients of one, a step takes p to -1 - 1.1 * p: away from REST, by GROWTH, so that no error fades.
HOW = {"lr": 1.0, "weight_decay": 2.1}
GROWTH, REST = -1.1, -1 / 2.1


class Watched(SGD):
    """SGD that tells whether two steps of one parameter were made at the same time, whatever came of it.

    It cannot watch what a subject makes of SGD itself, say in TorchScript: there is the race for that.
    """

    door = threading.Condition()
    inside: ClassVar[Counter[int]] = Counter()  # steps, by where their parameters are
    waits = 0
    together = False

    def step(self, closure: Any = None) -> Any:
        mine = [parameter.data_ptr() for group in self.param_groups for parameter in group["params"]]
        with self.door:
            self.inside.update(mine)
            Watched.together = self.together or any(self.inside[one] > 1 for one in mine)
            self.door.notify_all()
            if self.waits and not self.together:
                Watched.waits -= 1
                self.door.wait_for(lambda: self.together, WHILE)
        try:
            return super().step(closure)
        finally:
            with self.door:
                self.inside.subtract(mine)


def watch() -> None:
    """On an owner: from now on."""
    Watched.inside.clear()
    Watched.waits, Watched.together = 2, False


def were_together() -> bool:
    """On an owner."""
    return Watched.together


TOGETHER = "two steps of one parameter were made at the same time on worker1"
#: By so much a client may come late, on a busy machine. Two steps of those that are serialized wait for it.
WHILE = 0.3


def _rounds(place: Arena, parameters: Sequence[Parameter]) -> dict[Any, int]:
    """How many steps each client makes at the same time as the others, by optimizer."""
    place.on(1, watch)
    try:
        place.build(Watched, parameters, **HOW)
    except Exception:
        return {SGD: 10}  # that subclasses do not work is for parity.subclass to say
    return {Watched: 2, SGD: 10}


def train(optimizer: Any, rrefs: Sequence[Any], meet: Callable[[], object], steps: int) -> None:
    """One client: so many steps, each at the same time as the others', with gradients of one everywhere."""
    for _ in range(steps):
        with dist_autograd.context() as context_id:
            total = rpc.rpc_sync(rrefs[0].owner(), sums, args=(rrefs,))
            dist_autograd.backward(context_id, [total])
            meet()
            optimizer.step(context_id)


def sums(rrefs: Sequence[Any]) -> torch.Tensor:
    """On an owner: a loss whose gradients are ones, whatever the parameters are."""
    return torch.stack([rref.local_value().sum() for rref in rrefs]).sum()


def _as_one_by_one(place: Arena, before: dict[str, torch.Tensor], steps: int) -> None:
    """Whether each parameter is where so many steps take it, one after the other."""
    for name, value in place.values().items():
        expected = REST + GROWTH**steps * (before[name] - REST)
        off = (value - expected).abs()
        wrong = int((~(off <= 1e-9 * (1 + expected.abs()))).sum())
        check(
            wrong == 0,
            f"{name}: {wrong} elements are not where {steps} steps take them one after the other; "
            f"off by up to {float(off.max()):.3g}",
        )


@law("concurrent.same-client", lambda: points.plain(2))
def same_client(place: Arena, point: Point) -> None:
    """Steps that one client makes at the same time are serialized: none is lost."""
    parameters = place.own([(1, LARGE), (1, (3,))])
    threads = 4
    start = threading.Barrier(threads)
    failed: list[Exception] = []

    def work(ours: Any, steps: int) -> None:
        try:
            train(ours, [one.rref for one in parameters], start.wait, steps)
        except threading.BrokenBarrierError:
            pass  # another has failed
        except Exception as error:
            start.abort()
            failed.append(error)

    before = place.values()
    rounds = _rounds(place, parameters)
    for optimizer, steps in rounds.items():
        with subject_acts():
            ours = place.build(optimizer, parameters, **HOW)
            # Its first step is made alone: where steps that make their state race, the process may die of it.
            train(ours, [one.rref for one in parameters], lambda: None, 1)
        if optimizer is Watched:
            place.on(1, watch)  # that step had nobody to wait for
        workers = [threading.Thread(target=work, args=(ours, steps)) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        check(not failed, f"a concurrent step raised: {failed[:1]}")
    check(not place.on(1, were_together), TOGETHER)
    _as_one_by_one(place, before, sum(1 + threads * steps for steps in rounds.values()))


@law("concurrent.many-clients", lambda: points.plain(3))
def many_clients(place: Arena, point: Point) -> None:
    """Steps of several clients, each with an optimizer of its own, are serialized on each owner: none is lost."""
    parameters = place.own([(1, LARGE), (1, (3,))])
    before = place.values()
    rrefs = [one.rref for one in parameters]
    together[:] = [threading.Barrier(2)]
    rounds = _rounds(place, parameters)
    for optimizer, steps in rounds.items():
        with subject_acts():
            clients = [rpc.rpc_async(f"worker{rank}", client, args=(optimizer, rrefs, steps)) for rank in (0, 2)]
            for future in clients:
                future.wait()
    check(not place.on(1, were_together), TOGETHER)
    _as_one_by_one(place, before, 2 * sum(rounds.values()))


def client(optimizer: Any, rrefs: Sequence[Any], steps: int) -> None:
    """On a client: an optimizer of its own over the parameters of another worker."""
    train(acting[0].build(optimizer, rrefs, **HOW), rrefs, lambda: rpc.rpc_sync("worker0", meet), steps)


#: Where the clients wait for each other: on worker0.
together: list[threading.Barrier] = []


def meet() -> None:
    """On worker0: let the clients go on at the same time."""
    together[0].wait(20)


@law("clean.rrefs", lambda: points.plain(2))
def clean_rrefs(place: Arena, point: Point) -> None:
    """When the optimizer is dropped, no RRef of it is left on an owner."""
    parameters = place.own([(1, (3,)), (1, (4,))])
    before = place.on(1, owned_rrefs)
    with subject_acts():
        ours = place.build(SGD, parameters, lr=0.1)
    place.step_that_moves(ours, parameters)
    del ours
    gc.collect()
    gone = eventually(lambda: place.on(1, owned_rrefs) <= before)
    check(gone, f"worker1 owned {before} RRefs before and {place.on(1, owned_rrefs)} after the optimizer was dropped")


def owned_rrefs() -> int:
    """On an owner."""
    gc.collect()
    return int(_rref_context_get_debug_info()["num_owner_rrefs"])


@law("clean.globals", lambda: points.plain(2))
def clean_globals(place: Arena, point: Point) -> None:
    """RNG, default dtype, grad mode and warnings filters are untouched, at the caller and on the owner."""
    parameters = place.own([(1, (3,)), (0, (2,))])
    before = [place.on(owner, globals_now) for owner in (0, 1)]
    with subject_acts():
        ours = place.build(SGD, parameters, lr=0.1)
    place.step_that_moves(ours, parameters)
    for owner in (0, 1):
        after = place.on(owner, globals_now)
        changed = [name for name in after if after[name] != before[owner][name]]
        check(not changed, f"on worker{owner}, the optimizer changed {', '.join(changed)}")


def globals_now() -> dict[str, str]:
    """On an owner, or at the caller."""
    return {
        "the RNG": str(hash(torch.get_rng_state().numpy().tobytes())),
        "Python's RNG": str(hash(random.getstate())),
        "the default dtype": str(torch.get_default_dtype()),
        "the grad mode": str(torch.is_grad_enabled()),
        "the warnings filters": str(len(warnings.filters)),
    }
