"""Results that come as late as torch's API allows: a Work is over only once someone waits for it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from everyrank.mutate.operators import Operation, Tensors
from torch._C._distributed_c10d import Work, _create_work_from_future  # type: ignore[attr-defined]

#: The methods of a Work that ask for its end.
_ASK = ("wait", "get_future", "synchronize")


@dataclass
class _Held:
    work: Any  # what the caller has; kept, so that Python knows it again
    finish: Callable[[], None]
    looked: bool = False


class LateResults:
    """The calls of one test whose results are held back. A Work is known by its methods in Python alone."""

    def __init__(self) -> None:
        self._held: list[_Held] = []
        self._replaced: dict[str, Any] = {}

    def hold(self, call: Operation) -> Any:
        """Make a call, and return a Work whose result is there once a method asks for it, or at its second look."""
        if not self._replaced:
            self._replaced = {name: getattr(Work, name) for name in (*_ASK, "is_completed")}
            for name, real in self._replaced.items():
                setattr(Work, name, self._asks(real) if name in _ASK else self._looks(real))
        results = [tensor.detach().clone() for tensor in call.outputs]
        work = call.run(outputs=results)
        future: Any = torch.futures.Future()

        def finish() -> None:
            try:
                self._replaced["wait"](work)
                _fill(call.outputs, results)
            except RuntimeError as error:
                future.set_exception(error)
            else:
                future.set_result(call.outputs)

        self._held.append(_Held(_create_work_from_future(future), finish))
        return self._held[-1].work

    def stop(self) -> None:
        """Finish what nobody has waited for: the test is over."""
        for held in self._held:
            held.finish()
        self._held = []
        for name, real in self._replaced.items():
            setattr(Work, name, real)

    def _find(self, work: Any) -> _Held | None:
        return next((held for held in self._held if held.work is work), None)

    def _finish(self, held: _Held) -> None:
        self._held.remove(held)
        held.finish()

    def _asks(self, real: Any) -> Any:
        @functools.wraps(real)
        def asked(work: Any, *arguments: Any, **options: Any) -> Any:
            if (held := self._find(work)) is not None:
                self._finish(held)
            return real(work, *arguments, **options)

        return asked

    def _looks(self, real: Any) -> Any:
        @functools.wraps(real)
        def is_completed(work: Any) -> Any:
            if (held := self._find(work)) is not None:
                if held.looked:
                    self._finish(held)
                held.looked = True
            return real(work)

        return is_completed


def _fill(outputs: Tensors, results: Tensors) -> None:
    for output, result in zip(outputs, results, strict=True):
        output.data.copy_(result)  # as a group's backend does, so that autograd counts no change in place
