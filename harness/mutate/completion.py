"""A Work that is over when others are, and something was done with their results."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from everyrank.mutate.operators import Tensors
from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined]

#: At the end of a test, a call that is not over is left after this many seconds.
_JOIN = 1.0


class Completion:
    """Finishes the calls of one test on a rank.

    A thread of ours waits for each. In one of gloo's threads, Python would still run while the user's code goes on,
    and if that destroys the group then, the process aborts.
    """

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []

    def after(self, works: list[Any], outputs: Tensors, finish: Callable[[], None]) -> Any:
        """Return a Work that is over when these are, and ``finish`` was called."""
        future: Any = torch.futures.Future()

        def wait() -> None:
            try:
                while works:
                    works.pop(0).wait()
                with torch.no_grad():
                    finish()
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(outputs)

        self._threads.append(threading.Thread(target=wait, daemon=True))
        self._threads[-1].start()
        return _create_work_from_future(future)

    def stop(self) -> None:
        """Wait for the threads: the test is over."""
        for thread in self._threads:
            thread.join(_JOIN)
