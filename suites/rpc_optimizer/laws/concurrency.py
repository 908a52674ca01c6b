"""The laws of ``rpc-optimizer`` about steps at the same time, and about what an optimizer leaves behind."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.comparison import check
from everyrank.suites.engine.contract import Point
from everyrank.suites.rpc_optimizer import points
from everyrank.suites.rpc_optimizer.arena import Arena, acting, eventually, globals_now
from everyrank.suites.rpc_optimizer.contract import CONTRACT
from everyrank.suites.rpc_optimizer.law_player import LawSides, Values, optimizer, playing
from everyrank.suites.rpc_optimizer.laws.training import SGD, TWO
from everyrank.suites.rpc_optimizer.model import Param
from everyrank.suites.rpc_optimizer.planted import on
from everyrank.suites.rpc_optimizer.watched import Watched, end_watch, expect_company, watch
from torch.distributed.rpc import _rref_context_get_debug_info

law = CONTRACT.law

#: With gradients of one, a step changes p to -1 - 1.1 * p: away from REST by the factor GROWTH, so no error fades.
ARGUMENTS = {"lr": 1.0, "weight_decay": 2.1}
GROWTH, REST = -1.1, -1 / 2.1
#: The shapes of small parameters, and of a large one with a small one. A step with weight decay reads a parameter and
#: writes it later. With the large one this takes longer than other clients are late, and longer than a time slice of
#: a core: if steps are not serialized, one reads values that another is about to change, even on one core.
SMALL, LARGE = ((3,), (2,)), ((1 << 21,), (3,))
#: The steps that each client makes, at the same time as the others, while they are watched or not.
STEPS, UNWATCHED_STEPS = 4, 10

TOGETHER = "two steps of one parameter were made at the same time on worker1"

#: It makes this many steps of each client with this optimizer. It returns how many that were.
MakeSteps = Callable[[LawSides, type[SGD], int], int]


def _check_clients(arena: Arena, make_steps: MakeSteps) -> None:
    """Check that steps of one parameter never run at the same time, and that none is lost.

    The steps of a subclass and of SGD are watched on the owner. If a subject replaces SGD's code, say by TorchScript,
    there is nothing to watch: then the values of a large parameter show a race.
    """
    with playing(arena, [Param(1, shape) for shape in SMALL], compared=False) as player:
        before, steps = player.sides.values, 0
        for kind in (Watched, SGD) if _takes_subclasses(player.sides) else (SGD,):
            on(1, watch, kind is SGD)
            try:
                its_steps = make_steps(player.sides, kind, STEPS)
            finally:
                together, seen = on(1, end_watch)
            check(not together, TOGETHER)
            steps += its_steps
        _check_serial(before, player.sides.values, steps)
    if seen < its_steps:
        with playing(arena, [Param(1, shape) for shape in LARGE], compared=False) as player:
            before = player.sides.values
            steps = make_steps(player.sides, SGD, UNWATCHED_STEPS)
            _check_serial(before, player.sides.values, steps)


def _rrefs(sides: LawSides) -> list[Any]:
    return sides.rrefs(sides.every)


def _takes_subclasses(sides: LawSides) -> bool:
    try:
        sides.build_over(Watched, _rrefs(sides), **ARGUMENTS)
    except Exception:
        return False  # the law parity.subclass reports that subclasses do not work
    return True


def train(optimizer: Any, rrefs: Sequence[Any], meet: Callable[[], object], steps: int) -> None:
    """Do these steps as one client, each at the same time as the others' steps, with gradients of one."""
    for _ in range(steps):
        with dist_autograd.context() as context_id:
            total = rpc.rpc_sync(rrefs[0].owner(), sums, args=(rrefs,))
            dist_autograd.backward(context_id, [total])
            meet()
            optimizer.step(context_id)


def sums(rrefs: Sequence[Any]) -> torch.Tensor:
    """Return, on an owner, a loss whose gradients are ones for any values of the parameters."""
    return torch.stack([rref.local_value().sum() for rref in rrefs]).sum()


def _check_serial(before: Values, after: Values, steps: int) -> None:
    """Check that each parameter has the value after this many steps in sequence."""
    for name, value in after.items():
        expected = REST + GROWTH**steps * (before[name] - REST)
        off = (value - expected).abs()
        wrong = int((~(off <= 1e-9 * (1 + expected.abs()))).sum())
        check(
            wrong == 0,
            f"{name}: {wrong} elements are not where {steps} steps take them one after the other; "
            f"off by up to {float(off.max()):.3g}",
        )


@law("concurrent.same-client", lambda: points.plain(2), groups=("CONCURRENT",))
def same_client(arena: Arena, point: Point) -> None:
    """Steps that one client makes at the same time are serialized, and none is lost."""
    threads = 4
    start = threading.Barrier(threads)
    failed: list[Exception] = []

    def work(ours: Any, rrefs: Sequence[Any], steps: int) -> None:
        try:
            train(ours, rrefs, start.wait, steps)
        except threading.BrokenBarrierError:
            pass  # another thread has failed
        except Exception as error:
            start.abort()
            failed.append(error)

    def make_steps(sides: LawSides, kind: type[SGD], steps: int) -> int:
        rrefs = _rrefs(sides)
        with subject_acts():
            ours = sides.build_over(kind, rrefs, **ARGUMENTS)
            # The first step runs alone: if steps race while they make their state, the process may crash.
            train(ours, rrefs, lambda: None, 1)
        on(1, expect_company)
        workers = [threading.Thread(target=work, args=(ours, rrefs, steps)) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        check(not failed, f"a concurrent step raised: {failed[:1]}")
        return 1 + threads * steps

    _check_clients(arena, make_steps)


@law("concurrent.many-clients", lambda: points.plain(3), groups=("CONCURRENT",))
def many_clients(arena: Arena, point: Point) -> None:
    """Steps of several clients, each with its own optimizer, are serialized on each owner, and none is lost."""
    barriers[:] = [threading.Barrier(2)]

    def make_steps(sides: LawSides, kind: type[SGD], steps: int) -> int:
        rrefs = _rrefs(sides)
        on(1, expect_company)
        with subject_acts():
            clients = [rpc.rpc_async(f"worker{rank}", client, args=(kind, rrefs, steps)) for rank in (0, 2)]
            for future in clients:
                future.wait()
        return 2 * steps

    _check_clients(arena, make_steps)


def client(optimizer: Any, rrefs: Sequence[Any], steps: int) -> None:
    """Train, on a client, with its own optimizer over the parameters of another worker."""
    train(acting[0].build(optimizer, rrefs, **ARGUMENTS), rrefs, lambda: rpc.rpc_sync("worker0", meet), steps)


#: The barrier at which the clients wait for each other, on worker0.
barriers: list[threading.Barrier] = []


def meet() -> None:
    """Wait, on worker0, until both clients are here: they go on at the same time."""
    barriers[0].wait(20)


@law("clean.rrefs", lambda: points.plain(2))
def clean_rrefs(arena: Arena, point: Point) -> None:
    """When the optimizer is dropped, none of its RRefs is left on an owner."""
    before = on(1, owned_rrefs)
    with playing(arena, TWO, optimizer(), compared=False) as player:
        player.step_that_moves()
        player.sides.ours.clear()
        gc.collect()
        gone = eventually(lambda: on(1, owned_rrefs) <= before)
        check(gone, f"worker1 owned {before} RRefs before and {on(1, owned_rrefs)} after the optimizer was dropped")


def owned_rrefs() -> int:
    """Return, on an owner, how many RRefs it owns."""
    gc.collect()
    return int(_rref_context_get_debug_info()["num_owner_rrefs"])


@law("clean.globals", lambda: points.plain(2))
def clean_globals(arena: Arena, point: Point) -> None:
    """RNG, default dtype, grad mode and warnings filters are unchanged, at the caller and on the owner."""
    before = [on(owner, globals_now) for owner in (0, 1)]
    with playing(arena, [Param(1, (3,)), Param(0, (2,))], optimizer(), compared=False) as player:
        player.step_that_moves()
        for owner in (0, 1):
            after = on(owner, globals_now)
            changed = [name for name in after if after[name] != before[owner][name]]
            check(not changed, f"on worker{owner}, the optimizer changed {', '.join(changed)}")
