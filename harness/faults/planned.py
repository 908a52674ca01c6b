"""Makes the faults that are planned for a rank happen, each at its point; and counts the points that the rank has."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch
from everyrank.faults.connections import cut
from everyrank.faults.files import Files, are_regular, fill_disk
from everyrank.faults.keys import Keys
from everyrank.faults.late import LateResults
from everyrank.faults.text import planned_error
from everyrank.model.fault import (
    COLLECTIVE,
    CUTS,
    DIES,
    DROPS,
    EXITS,
    FILE,
    FLIPS,
    FULL,
    KEY,
    LATE,
    RAISES,
    Counted,
    Fault,
    Made,
    Plan,
)
from everyrank.mutate import operators
from everyrank.mutate.completion import Completion
from everyrank.mutate.lines import location, users_line
from everyrank.mutate.operators import Operation

#: At most this many points of a kind are noted in a test; all are counted.
_MOST = 2000
#: The integers as which the bits of a number are seen, by its bytes.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
#: torch's module whose functions return a Work of gloo to the test.
_RETURNS_WORKS = "torch.distributed.distributed_c10d"


@dataclass
class _Count:
    number: int = 0
    calls: list[tuple[str, CodeType, int]] = field(default_factory=list)
    trouble: str = ""

    @property
    def counted(self) -> Counted:
        calls = [Made(name, location(code, line)) for name, code, line in self.calls]
        return Counted(self.number, calls, self.trouble)


class Planned:
    """The faults of one rank in one test. ``report`` is called before each acts: the rank may not live on.

    ``own`` is the descriptor by which the rank is connected with the controller.
    """

    def __init__(self, plan: Plan, rank: int, report: Callable[[Fault, Made], None], own: int) -> None:
        self._due = {(fault.point, fault.number): fault for fault in plan.faults if fault.rank == rank}
        self._report, self._own = report, own
        self._counting = threading.Lock()  # DDP's reducer calls in a thread of autograd's
        self._counts: dict[str, _Count] = defaultdict(_Count)
        self._completion, self._late = Completion(), LateResults()
        if COLLECTIVE in plan.points:
            operators.see_by(self.see)
        self._seeing: list[Files | Keys] = [Keys(self._key)] if KEY in plan.points else []
        self._seeing += [Files(self._file)] if FILE in plan.points else []

    def stop(self) -> None:
        """See no more: the test is over."""
        operators.see_by(None)
        for seeing in self._seeing:
            seeing.stop()
        self._late.stop()
        self._completion.stop()

    def counted(self) -> dict[str, Counted]:
        return {point: count.counted for point, count in self._counts.items()}

    # --- what is seen ------------------------------------------------------------------------------

    def see(self, call: Operation) -> Any:
        """Make a call of a group, with its fault if one is due, and return its Work. A message is no collective."""
        if call.name == "send":
            return call.run()
        fault, made = self._next(COLLECTIVE, call.name)
        if fault is None:
            return call.run()
        if fault.act == FLIPS:
            return self._flip(fault, call, made)
        if fault.act == LATE:
            return self._hold(fault, call, made, sys._getframe(3).f_globals.get("__name__", ""))
        return self._act(fault, made, call.run, lambda work: work.wait())

    def _file(self, name: str, run: Callable[[], Any], descriptors: Callable[[Any], list[int]]) -> Any:
        """Open a file to write. With a fault it is open when that happens, and empty if it is a new one."""
        opened = run()
        found = descriptors(opened)
        if not are_regular(found):
            return opened
        fault, made = self._next(FILE, name)
        if fault is None:
            return opened
        if fault.act == FULL:
            self._report(fault, made)
            fill_disk(found)
            return opened
        return self._act(fault, made, lambda: opened)

    def _key(self, name: str, run: Callable[[], Any], drop: Callable[[], Any]) -> Any:
        fault, made = self._next(KEY, name)
        if fault is None:
            return run()
        if fault.act == DROPS:
            self._report(fault, made)
            return drop()
        return self._act(fault, made, run)

    def _next(self, point: str, name: str) -> tuple[Fault | None, Made]:
        """Count a point. Return the fault that is due there, and how the point is named."""
        code, line = users_line()
        with self._counting:
            count = self._counts[point]
            count.number += 1
            if count.number <= _MOST:
                count.calls.append((name, code, line))
            fault = self._due.get((point, count.number))
        return fault, Made(name, location(code, line) if fault is not None else "")

    # --- what happens ------------------------------------------------------------------------------

    def _act(
        self, fault: Fault, made: Made, run: Callable[[], Any], wait: Callable[[Any], Any] = lambda result: None
    ) -> Any:
        if fault.after:
            result = run()
            wait(result)
        self._report(fault, made)
        if fault.act == DIES:
            signal.raise_signal(signal.Signals[fault.value])  # a handler of the user's may let the rank live on
        elif fault.act == EXITS:
            os._exit(int(fault.value))
        elif fault.act == RAISES:
            raise planned_error(fault)
        elif fault.act == CUTS:
            cut(self._own)
        else:
            time.sleep(float(fault.value))
        return result if fault.after else run()

    def _flip(self, fault: Fault, call: Operation, made: Made) -> Any:
        """Make the call, and flip a bit of its result before anyone has it."""
        output = next((tensor for tensor in call.outputs if tensor.numel()), None)
        if output is None:
            self._counts[COLLECTIVE].trouble = f"{made} gives rank {fault.rank} no tensor"
            return call.run()

        def finish() -> None:
            flip(output)
            self._report(fault, made)

        return self._completion.after([call.run()], call.outputs, finish)

    def _hold(self, fault: Fault, call: Operation, made: Made, caller: str) -> Any:
        """Make the call, and hold its result back until the test waits for it."""
        if not call.asynchronous or caller != _RETURNS_WORKS or not call.outputs:
            reason = "returns no Work that the test could wait for late: it needs async_op=True, and a result"
            self._counts[COLLECTIVE].trouble = f"{made} {reason}"
            return call.run()
        self._report(fault, made)
        return self._late.hold(call)


def flip(tensor: torch.Tensor) -> None:
    """Flip a bit of the largest element: the lowest bit of its exponent, which doubles or halves it; else bit 0."""
    values = tensor.detach().clone().contiguous()  # a tensor of another layout is filled from its copy
    numbers = (torch.view_as_real(values) if values.is_complex() else values).view(-1)
    largest = int(numbers.double().abs().nan_to_num(nan=math.inf).argmax())
    bit = round(-math.log2(torch.finfo(numbers.dtype).eps)) if numbers.is_floating_point() else 0
    numbers.view(_BITS[numbers.element_size()])[largest] ^= 1 << bit
    tensor.data.copy_(values)  # as a group's backend does, so that autograd counts no change in place
