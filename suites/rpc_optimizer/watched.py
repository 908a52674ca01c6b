"""Watch the steps of SGD on an owner: whether two steps of one parameter ever run at the same time."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch

#: How many seconds a client may be late on a busy machine. One of the serialized steps waits this long.
LATENESS = 0.3


class _Watch:
    """What is known of the steps on this owner since the watch began."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.stepping: Counter[int] = Counter()  # how many steps use a parameter now, by its address
        self.seen = 0
        self.together = False
        self.expects_company = False
        self.restore: Callable[[], None] = lambda: None

    @contextlib.contextmanager
    def step(self, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """Note one step. The first that may have company waits for it: if steps are serialized, none comes."""
        mine = [parameter.data_ptr() for group in optimizer.param_groups for parameter in group["params"]]
        with self.condition:
            self.seen += 1
            self.stepping.update(mine)
            self.together = self.together or any(self.stepping[address] > 1 for address in mine)
            self.condition.notify_all()
            if self.expects_company and not self.together:
                self.expects_company = False
                self.condition.wait_for(lambda: self.together, LATENESS)
        try:
            yield
        finally:
            with self.condition:
                self.stepping.subtract(mine)


_watch = _Watch()


class Watched(torch.optim.SGD):
    """A subclass of SGD whose steps are watched."""

    def step(self, closure: Any = None) -> Any:
        with _watch.step(self):
            return super().step(closure)


def watch(plain_sgd: bool) -> None:
    """Begin, on an owner, to watch the steps of `Watched` or of SGD itself."""
    global _watch
    _watch = _Watch()
    if plain_sgd:
        given: Any = torch.optim.SGD.step

        @functools.wraps(given)  # with the mark of torch's profiler hook: otherwise torch would wrap it again
        def step(self: torch.optim.SGD, closure: Any = None) -> Any:
            with _watch.step(self):
                return given(self, closure)

        _watch.restore = functools.partial(setattr, torch.optim.SGD, "step", given)
        torch.optim.SGD.step = step  # type: ignore[method-assign]


def expect_company() -> None:
    """Let, on an owner, the next step wait for another: from here on several clients step at the same time."""
    _watch.expects_company = True


def end_watch() -> tuple[bool, int]:
    """Return, on an owner, whether two steps of one parameter ran at the same time, and how many steps were seen."""
    _watch.restore()
    return _watch.together, _watch.seen
