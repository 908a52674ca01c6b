"""Contexts of distributed autograd: those that stay open beside another (a thread has only one), and closed ones."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import torch.distributed.autograd as dist_autograd
from everyrank.suites.rpc_optimizer.arena import eventually
from everyrank.suites.rpc_optimizer.planted import on


class HeldContext:
    """A context that another thread opens, runs a backward in, and holds open until it is closed."""

    def __init__(self, backward: Callable[[int], object]) -> None:
        self.id = -1
        self._backward = backward
        self._opened, self._done = threading.Event(), threading.Event()
        self._errors: list[Exception] = []
        self._thread = threading.Thread(target=self._hold)
        self._thread.start()
        self._opened.wait()
        if self._errors:
            self.close()
            raise self._errors[0]

    def _hold(self) -> None:
        try:
            with dist_autograd.context() as self.id:
                self._backward(self.id)
                self._opened.set()
                self._done.wait()
        except Exception as error:
            self._errors.append(error)
        finally:
            self._opened.set()

    def close(self) -> None:
        self._done.set()
        self._thread.join()


def wait_until_closed(context_id: int, owners: Iterable[int]) -> None:
    """Wait until these owners know that a context is closed: its client sends word, and waits for no answer."""
    for owner in owners:
        eventually(lambda owner=owner: not on(owner, knows, context_id))  # type: ignore[misc]


def knows(context_id: int) -> bool:
    """Return whether a context is open here."""
    try:
        dist_autograd._retrieve_context(context_id)
    except RuntimeError:
        return False
    return True
