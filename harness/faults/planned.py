"""Makes the faults that are planned for a rank happen, each at its collective; and counts the rank's collectives."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable
from types import CodeType
from typing import Any

import torch
from everyrank.faults.text import planned_error
from everyrank.model.fault import DIES, EXITS, FLIPS, RAISES, Counted, Fault, Made, Plan
from everyrank.mutate import operators
from everyrank.mutate.completion import Completion
from everyrank.mutate.lines import location, users_line
from everyrank.mutate.operators import Operation

#: At most this many collectives of a test are noted; all are counted.
_MOST = 2000
#: The integers as which the bits of a number are seen, by its bytes.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Planned:
    """The faults of one rank in one test. ``report`` is called before each acts: the rank may not live on."""

    def __init__(self, plan: Plan, rank: int, report: Callable[[Fault, Made], None]) -> None:
        self._due = {fault.number: fault for fault in plan.faults if fault.rank == rank}
        self._report = report
        self._number = 0
        self._counting = threading.Lock()  # DDP's reducer calls in a thread of autograd's
        self._calls: list[tuple[str, CodeType, int]] = []
        self._trouble = ""
        self._completion = Completion()
        operators.see_by(self.see)

    def stop(self) -> None:
        """See no more calls: the test is over."""
        operators.see_by(None)
        self._completion.stop()

    def counted(self) -> Counted:
        calls = [Made(name, location(code, line)) for name, code, line in self._calls]
        return Counted(self._number, calls, self._trouble)

    def see(self, call: Operation) -> Any:
        """Make a call of a group, with its fault if one is due, and return its Work. A message is no collective."""
        if call.name == "send":
            return call.run()
        line = users_line()
        with self._counting:
            self._number += 1
            number = self._number
            if number <= _MOST:
                self._calls.append((call.name, *line))
        fault = self._due.get(number)
        if fault is None:
            return call.run()
        made = Made(call.name, location(*line))
        return self._flip(fault, call, made) if fault.act == FLIPS else self._act(fault, call, made)

    def _act(self, fault: Fault, call: Operation, made: Made) -> Any:
        work = call.run() if fault.after else None
        if work is not None:
            work.wait()
        self._report(fault, made)
        if fault.act == DIES:
            signal.raise_signal(signal.Signals[fault.value])  # a handler of the user's may let the rank live on
        elif fault.act == EXITS:
            os._exit(int(fault.value))
        elif fault.act == RAISES:
            raise planned_error(fault)
        else:
            time.sleep(float(fault.value))
        return call.run() if work is None else work

    def _flip(self, fault: Fault, call: Operation, made: Made) -> Any:
        """Make the call, and flip a bit of its result before anyone has it."""
        output = next((tensor for tensor in call.outputs if tensor.numel()), None)
        if output is None:
            self._trouble = f"{made} gives rank {fault.rank} no tensor"
            return call.run()

        def finish() -> None:
            flip(output)
            self._report(fault, made)

        return self._completion.after([call.run()], call.outputs, finish)


def flip(tensor: torch.Tensor) -> None:
    """Flip a bit of the largest element: the lowest bit of its exponent, which doubles or halves it; else bit 0."""
    values = tensor.detach().clone().contiguous()  # a tensor of another layout is filled from its copy
    numbers = (torch.view_as_real(values) if values.is_complex() else values).view(-1)
    largest = int(numbers.double().abs().nan_to_num(nan=math.inf).argmax())
    bit = round(-math.log2(torch.finfo(numbers.dtype).eps)) if numbers.is_floating_point() else 0
    numbers.view(_BITS[numbers.element_size()])[largest] ^= 1 << bit
    tensor.data.copy_(values)  # as a group's backend does, so that autograd counts no change in place
