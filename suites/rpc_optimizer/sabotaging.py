"""Functions that drawn sequences of ``rpc-optimizer`` run on the owners, and the optimizers with faults."""

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
from everyrank.suites.arena.subject_errors import in_a_line
from everyrank.suites.compare.comparison import check
from everyrank.suites.errors import Deviation
from everyrank.suites.rpc_optimizer.arena import Arena, error_of, eventually, loss, sparse_loss
from everyrank.suites.rpc_optimizer.laws.concurrency import globals_now
from everyrank.suites.rpc_optimizer.planted import Failing, arm, disarm, has_entered

Gradients = dict[torch.Tensor, torch.Tensor]

#: How many answers of an owner must arrive before a step that has not begun counts as waiting.
_ANSWERS = 50


class Counted(Failing):
    """SGD that fails or waits on chosen workers, and notes whether steps of one parameter ran at the same time."""

    living: ClassVar[weakref.WeakSet[Counted]] = weakref.WeakSet()
    lock = threading.Lock()
    stepping: ClassVar[Counter[int]] = Counter()  # how many steps use a parameter now, by its address
    together = False

    def __init__(self, params: Any, lr: float = 0.1, at_construction: tuple[str, ...] = ()) -> None:
        self.living.add(self)
        super().__init__(params, lr, at_construction)

    def step(self, closure: Any = None) -> Any:
        # Parameters without elements all have the same address.
        mine = {param.data_ptr() for group in self.param_groups for param in group["params"] if param.numel()}
        with self.lock:
            self.stepping.update(mine)
            Counted.together |= any(self.stepping[address] > 1 for address in mine)
        try:
            return super().step(closure)
        finally:
            with self.lock:
                self.stepping.subtract(mine)


class Unbuildable(Counted):
    """The class whose constructor fails on chosen workers."""

    living: ClassVar[weakref.WeakSet[Counted]] = weakref.WeakSet()


@dataclass(frozen=True)
class Seen:
    """A parameter as its owner has it."""

    value: torch.Tensor
    has_grad: bool


def laid_out(value: torch.Tensor, layout: str, frozen: bool) -> torch.Tensor:
    """Return a leaf with this value in memory of this layout."""
    if layout == "transposed":
        held = value.t().contiguous().t()
    elif layout == "rows":
        held = torch.stack([value, value], 1)[:, 0]
    else:
        held = value.clone()
    return held.detach().requires_grad_(not frozen)


def make_all(plans: Sequence[tuple[int, torch.Tensor, str, bool, int | None]]) -> list[Any]:
    """Make, on an owner, the parameters of a draw. Forget earlier faults and optimizers."""
    disarm()
    Counted.living, Unbuildable.living = weakref.WeakSet(), weakref.WeakSet()
    Counted.together = False
    Counted.stepping.clear()
    made: dict[int, torch.Tensor] = {}
    for number, value, layout, frozen, same_as in plans:
        made[number] = laid_out(value, layout, frozen) if same_as is None else made[same_as]
    return [rpc.RRef(parameter) for parameter in made.values()]


def look(rrefs: Sequence[Any]) -> tuple[list[Seen], dict[str, str]]:
    """Return, on an owner, parameters and the global state, without warnings filters, which the rank's test sets."""
    held = [rref.local_value() for rref in rrefs]
    state = {name: value for name, value in globals_now().items() if name != "the warnings filters"}
    return [Seen(value.detach().clone(), value.grad is not None) for value in held], state


def filters() -> str:
    """Return, at the driver, how many warnings filters there are."""
    return str(len(warnings.filters))


def loss_of(parameter: torch.Tensor, given: tuple[torch.Tensor, bool]) -> torch.Tensor:
    """Return the loss of one parameter with these data; its gradient is sparse if requested."""
    data, sparse = given
    return sparse_loss(parameter, data) if sparse else loss(parameter, data)


def alive_of(kind: str) -> int:
    """Return, on an owner, how many optimizers of this kind exist."""
    living = {"Counted": Counted, "Unbuildable": Unbuildable}[kind].living
    if living:
        gc.collect()
    return len(living)


def were_together() -> bool:
    """Return, on an owner, whether two steps of one parameter ran at the same time."""
    return Counted.together


@contextlib.contextmanager
def context_beside(backward: Callable[[int], Gradients]) -> Iterator[tuple[int, Gradients]]:
    """Open a context in another thread, as a thread has only one; run this backward, which returns gradients."""
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

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        opened.wait()
        if errors:
            raise errors[0]
        yield made[0]
    finally:
        done.set()
        thread.join()


def steps_together(
    arena: Arena, owner: int, optimizers: Sequence[Any], backward: Callable[[int], Gradients]
) -> list[Gradients]:
    """Do a step of each optimizer, each with its own backward. Hold the first while the second begins."""
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
            for _ in range(_ANSWERS):  # by then the second step has begun if it does not wait for the first
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
