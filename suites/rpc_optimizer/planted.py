"""Optimizers that fail or wait on workers chosen by a law or a move of ``rpc-optimizer``. Errors name no worker."""

from __future__ import annotations

import contextlib
import gc
import inspect
import itertools
import re
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, ClassVar

import torch.distributed.rpc as rpc
from everyrank.fixtures.failing import AROUND, line_lost
from everyrank.fixtures.optimizers import rows
from everyrank.suites.compare.comparison import check
from everyrank.suites.errors import Deviation
from everyrank.suites.rpc_optimizer.arena import error_of, eventually, resets

#: The text of each worker's error. It must not contain the worker's name, for which laws look in the error.
WORDS = {0: "apple", 1: "pear", 2: "plum", 3: "quince"}

#: How many answers of a worker must arrive before what it did not say by then counts as not said.
_ANSWERS = 20


class OnePicky(Exception):
    """An error that can be pickled but not unpickled."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


class Planted:
    """Fails or waits where it is armed, and notes whether steps ran at the same time."""

    alive: ClassVar[weakref.WeakKeyDictionary[Any, int]] = weakref.WeakKeyDictionary()
    """Those that exist on this owner, with a number of each."""
    numbers = itertools.count()
    #: The faults of the next steps on this worker; filled by ``arm``.
    armed: ClassVar[list[str]] = []
    entered, released = threading.Event(), threading.Event()
    lock = threading.Lock()
    stepping: ClassVar[int] = 0  # how many steps there are now
    together: ClassVar[bool] = False

    def __init__(self, params: Any, *args: Any, at_construction: tuple[str, ...] = (), **kwargs: Any) -> None:
        base: Any = super()
        base.__init__(params, *args, **kwargs)
        with self.lock:
            self.alive[self] = next(self.numbers)
        if rpc.get_worker_info().name in at_construction:
            raise ValueError("cannot be built: sabotaged")

    def step(self, closure: Any = None) -> Any:
        with self.lock:
            Planted.stepping += 1
            Planted.together |= Planted.stepping > 1
        try:
            _fail_or_wait(self.armed.pop(0) if self.armed else "")
            base: Any = super()
            return base.step(closure)
        finally:
            with self.lock:
                Planted.stepping -= 1


def _fail_or_wait(kind: str) -> None:
    if kind == "slow":
        Planted.entered.set()
        Planted.released.wait()
    elif kind == "unpicklable":
        raise OnePicky("step", "sabotaged")
    elif kind:
        raise ValueError(kind)


def _planted(optimizer: Any) -> Any:
    """Return the class of this optimizer that can be made to fail or to wait; a subject may read its signature."""
    signature = inspect.signature(optimizer)
    own = inspect.Parameter("at_construction", inspect.Parameter.KEYWORD_ONLY, default=())
    members = {
        "__module__": __name__,
        "__signature__": signature.replace(parameters=[*signature.parameters.values(), own]),
    }
    return type(f"Planted{optimizer.__name__}", (Planted, optimizer), members)


#: For each optimizer of the table the class that can be made to fail or to wait.
PLANTED: dict[str, Any] = {row.name: _planted(row.optimizer) for row in rows()}
globals().update({kind.__name__: kind for kind in PLANTED.values()})  # where pickle looks for them


def text_of(owner: int, around: str, letters: bool) -> str:
    """Return the text of an owner's error; ``around``: what stands around it, ``letters``: also some not in ASCII."""
    text = f"step sabotaged: {WORDS[owner]}"
    return AROUND[around].format(AROUND["letters"].format(text) if letters else text)


def arm(kind: str) -> None:
    """Let the next step on this owner be slow, or fail with an error that cannot be unpickled or with this text."""
    Planted.entered.clear()
    Planted.released.clear()
    Planted.armed.append(kind)


def disarm() -> None:
    """Let a slow step on this owner go on, and let no further step fail or be slow."""
    Planted.armed.clear()
    Planted.released.set()


def forget() -> None:
    """Forget, on this owner, the optimizers and the steps of earlier scripts."""
    disarm()
    Planted.alive = weakref.WeakKeyDictionary()
    Planted.together = False
    Planted.stepping = 0


resets.append(disarm)


def has_entered() -> bool:
    """Return whether the slow step on this owner has begun."""
    return Planted.entered.is_set()


def were_together() -> bool:
    """Return, on an owner, whether two steps ran at the same time."""
    return Planted.together


def alive() -> frozenset[int]:
    """Return the numbers of these optimizers that exist on this owner."""
    with Planted.lock:
        return frozenset(Planted.alive.values())


def check_gone(
    before: Mapping[int, frozenset[int]], holds: Callable[[frozenset[int], frozenset[int]], bool], problem: str
) -> None:
    """Check that soon this holds on each of these owners, of the optimizers that existed before and of those now.

    What an earlier case has left there may go at any time, so that a count alone would hide one that stays.
    """
    for owner in before:

        def gone(owner: int = owner) -> bool:
            if holds(before[owner], on(owner, alive)):
                return True
            gc.collect()  # only now: nothing else here takes as long
            on(owner, gc.collect)
            return holds(before[owner], on(owner, alive))

        check(eventually(gone), f"{problem} worker{owner}")


def on(owner: int, function: Callable[..., Any], *args: Any) -> Any:
    """Run a function on an owner."""
    return rpc.rpc_sync(f"worker{owner}", function, args=args)


def wrong_in_error(
    error: Exception, failing: Collection[int], foreign: bool, around: str, letters: bool
) -> Iterator[str]:
    """Yield what is wrong with the error of a step: it names each worker that failed, with its own cause.

    The error of one worker has its type; one error of several workers may have any. ``around``, ``letters``: what
    stands around the cause.
    """
    text = str(error)
    if foreign:
        if "step sabotaged" not in text:
            yield f"the text of the error was lost: {type(error).__name__}: {text}"
        return
    if len(failing) == 1 and not isinstance(error, ValueError):
        yield f"the error is a {type(error).__name__}, not a ValueError"
    for owner in failing:
        if f"worker{owner}" not in text:
            yield f"the error does not name worker{owner}: {text}"
        if WORDS[owner] not in text:
            yield f"the error does not say what went wrong on worker{owner}: {text}"
        elif lost := line_lost(text_of(owner, around, letters), text):
            yield f"the error has not all lines of what went wrong on worker{owner}: {lost!r} is lost"
    if not _each_under_its_name(text, failing):
        yield f"an error stands under another worker's name: {text}"


def _each_under_its_name(text: str, failing: Collection[int]) -> bool:
    """Return whether each error follows its worker's name, or each precedes it."""
    before = after = True
    for owner in failing if len(failing) > 1 else ():
        head, _, tail = text.partition(WORDS[owner])
        names = re.findall(r"worker\d+", head)[-1:], re.findall(r"worker\d+", tail)[:1]
        before, after = before and names[0] == [f"worker{owner}"], after and names[1] == [f"worker{owner}"]
    return before or after


def fail_to_build(build: Callable[..., Any], failing: int, owners: Iterable[int]) -> None:
    """Build an optimizer whose constructor fails on one worker; check its error, and that nothing of it stays."""
    name = f"worker{failing}"
    before = {owner: on(owner, alive) for owner in owners}
    error = error_of(
        lambda: build(PLANTED["SGD"], lr=0.1, at_construction=(name,)), f"a constructor that fails on {name}"
    )
    check(isinstance(error, ValueError), f"the error is a {type(error).__name__}, not a ValueError")
    check("cannot be built" in str(error), f"the error's text does not contain the cause: {error}")
    check(name in str(error), f"the error's text does not name {name}: {error}")
    error.__traceback__ = None
    del error
    check_gone(before, lambda then, now: now <= then, "an optimizer that was half built still lives on")


def step_while_held(make_step: Callable[[], Any], slow: int, others: Iterable[int]) -> list[Exception]:
    """Do one step while an owner is held, and check that it does not return earlier. Return the errors it raised."""
    on(slow, arm, "slow")
    raised: list[Exception] = []
    returned = threading.Event()

    def work() -> None:
        with contextlib.suppress(Deviation):  # it did not raise
            raised.append(error_of(make_step, "a step"))
        returned.set()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        eventually(lambda: returned.is_set() or on(slow, has_entered))
        for owner in [*others] * _ANSWERS:  # by then an answer that was already sent has arrived
            on(owner, has_entered)
        early, entered = returned.is_set(), on(slow, has_entered)
    finally:
        on(slow, disarm)
        thread.join()
    check(entered, f"worker{slow} did not step")
    check(not early, f"step returned while worker{slow} was still stepping")
    return raised


def steps_together(owner: int, first: Callable[[], Any], second: Callable[[], Any]) -> list[Exception]:
    """Do two steps on one owner, the first held there while the second begins; return their errors."""
    errors: list[Exception] = []

    def work(make_step: Callable[[], Any]) -> None:
        with contextlib.suppress(Deviation):  # it did not raise
            errors.append(error_of(make_step, "a step"))

    threads = [threading.Thread(target=work, args=(make_step,)) for make_step in (first, second)]
    on(owner, arm, "slow")
    threads[0].start()
    try:
        entered = eventually(lambda: on(owner, has_entered) or not threads[0].is_alive())
        threads[1].start()
        for _ in range(2 * _ANSWERS):  # by then the second step has begun if it does not wait for the first
            on(owner, has_entered)
    finally:
        on(owner, disarm)
        for thread in threads:
            if thread.ident is not None:
                thread.join()
    check(entered, f"worker{owner} did not step")
    check(not on(owner, were_together), f"two steps were made at the same time on worker{owner}")
    return errors
