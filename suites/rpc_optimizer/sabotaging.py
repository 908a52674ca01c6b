"""What drawn sequences of ``rpc-optimizer`` run on the owners, and the optimizers that they plant there."""

from __future__ import annotations

import contextlib
import gc
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from everyrank.suites.acts import in_a_line
from everyrank.suites.compare import check
from everyrank.suites.errors import Deviation
from everyrank.suites.rpc_optimizer.arena import Arena, error_of, eventually, loss, sparse_loss
from everyrank.suites.rpc_optimizer.laws_at_once import globals_now
from everyrank.suites.rpc_optimizer.planted import Failing, arm, disarm, has_entered

Gradients = dict[torch.Tensor, torch.Tensor]

#: So many answers of an owner are waited for, before a step that has not begun is believed to wait.
_ANSWERS = 50


class Counted(Failing):
    """Fails or waits where that is planted, and notes which steps of one parameter were made at the same time."""

    living: ClassVar[weakref.WeakSet[Counted]] = weakref.WeakSet()
    door = threading.Lock()
    inside: ClassVar[Counter[int]] = Counter()  # steps, by where their parameters are
    together = False

    def __init__(self, params: Any, lr: float = 0.1, at_construction: tuple[str, ...] = ()) -> None:
        self.living.add(self)
        super().__init__(params, lr, at_construction)

    def step(self, closure: Any = None) -> Any:
        # Two parameters without an element are at the same place: at none.
        mine = {each.data_ptr() for group in self.param_groups for each in group["params"] if each.numel()}
        with self.door:
            self.inside.update(mine)
            Counted.together |= any(self.inside[each] > 1 for each in mine)
        try:
            return super().step(closure)
        finally:
            with self.door:
                self.inside.subtract(mine)


class Unbuildable(Counted):
    """Its constructor fails on the workers where that is planted."""

    living: ClassVar[weakref.WeakSet[Counted]] = weakref.WeakSet()


@dataclass(frozen=True)
class Seen:
    """What an owner has of a parameter."""

    value: torch.Tensor
    has_grad: bool


def laid_out(value: torch.Tensor, layout: str, frozen: bool) -> torch.Tensor:
    """A leaf of this value, held as the layout says."""
    if layout == "transposed":
        held = value.t().contiguous().t()
    elif layout == "rows":
        held = torch.stack([value, value], 1)[:, 0]
    else:
        held = value.clone()
    return held.detach().requires_grad_(not frozen)


def make_all(plans: Sequence[tuple[int, torch.Tensor, str, bool, int | None]]) -> list[Any]:
    """On an owner: the parameters of a draw. Nothing is planted yet, and no optimizer counts that lived before."""
    disarm()
    Counted.living, Unbuildable.living = weakref.WeakSet(), weakref.WeakSet()
    Counted.together = False
    Counted.inside.clear()
    made: dict[int, torch.Tensor] = {}
    for number, value, layout, frozen, same_as in plans:
        made[number] = laid_out(value, layout, frozen) if same_as is None else made[same_as]
    return [rpc.RRef(parameter) for parameter in made.values()]


def look(rrefs: Sequence[Any]) -> tuple[list[Seen], dict[str, str]]:
    """On an owner: parameters, and what no optimizer may change. Each rank's own test sets its warnings filters."""
    held = [rref.local_value() for rref in rrefs]
    state = {name: value for name, value in globals_now().items() if name != "the warnings filters"}
    return [Seen(each.detach().clone(), each.grad is not None) for each in held], state


def filters() -> str:
    """At the driver: how many filters of warnings there are."""
    return str(len(warnings.filters))


def loss_of(parameter: torch.Tensor, given: tuple[torch.Tensor, bool]) -> torch.Tensor:
    """The loss of one parameter, with these data; its gradient is sparse where that is asked for."""
    data, sparse = given
    return sparse_loss(parameter, data) if sparse else loss(parameter, data)


def alive_of(kind: str) -> int:
    """On an owner: how many optimizers of this kind live there."""
    living = {"Counted": Counted, "Unbuildable": Unbuildable}[kind].living
    if living:
        gc.collect()
    return len(living)


def were_together() -> bool:
    """On an owner: whether two steps of one parameter were made at the same time."""
    return Counted.together


@contextlib.contextmanager
def context_beside(backward: Callable[[int], Gradients]) -> Iterator[tuple[int, Gradients]]:
    """A context with this backward, which returns gradients: another thread's, since a thread has one at a time."""
    opened, done = threading.Event(), threading.Event()
    made: list[tuple[int, Gradients]] = []
    errors: list[Exception] = []

    def hold() -> None:
        try:
            with dist_autograd.context() as context_id:
                made.append((context_id, backward(context_id)))
                opened.set()
                done.wait()
        except Exception as error:
            errors.append(error)
        finally:
            opened.set()

    beside = threading.Thread(target=hold)
    beside.start()
    try:
        opened.wait()
        if errors:
            raise errors[0]
        yield made[0]
    finally:
        done.set()
        beside.join()


def steps_together(
    arena: Arena, owner: int, optimizers: Sequence[Any], backward: Callable[[int], Gradients]
) -> list[Gradients]:
    """Make a step of each, with a backward of its own. The first is held while the second comes."""
    errors: list[Exception] = []
    with contextlib.ExitStack() as stack:
        contexts = [stack.enter_context(context_beside(backward)) for _ in optimizers]

        def work(number: int) -> None:
            with contextlib.suppress(Deviation):  # it did not raise
                errors.append(error_of(lambda: optimizers[number].step(contexts[number][0]), "a step"))

        first, second = (threading.Thread(target=work, args=(number,)) for number in (0, 1))
        arena.on(owner, arm, "slow")
        first.start()
        try:
            entered = eventually(lambda: arena.on(owner, has_entered) or not first.is_alive())
            second.start()
            for _ in range(_ANSWERS):  # by then a step that does not wait for the first has begun
                arena.on(owner, has_entered)
        finally:
            arena.on(owner, disarm)
            first.join()
            if second.ident is not None:
                second.join()
    check(not errors, f"a step beside another raised {in_a_line(errors[0]) if errors else ''}")
    check(entered, f"worker{owner} did not step")
    together = arena.on(owner, were_together)
    check(not together, f"two steps of one parameter were made at the same time on worker{owner}")
    return [gradients for _, gradients in contexts]
