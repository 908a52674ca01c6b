"""What a rank's GPU waits for on NCCL, as text: the stack of its main thread does not show it."""

from __future__ import annotations

from everyrank.model.ranks import ordinal
from everyrank.wire.messages import NcclCall, OnNccl


def doing(seen: OnNccl | None) -> str:
    """Return a clause on the call that the GPU is in; empty if it is in none."""
    if seen is None or seen.first is None:
        return ""
    return f"NCCL in {_call(seen.first)}"


def text(seen: OnNccl) -> str:
    """Return a sentence on what the flight recorder shows."""
    if seen.problem:
        return f"unknown: {seen.problem}"
    if seen.last is None:
        return "nothing was called in this test"
    if seen.first is None:
        return f"all {seen.begun} calls are over, the last was {_call(seen.last, with_tensors=True)}"
    state = "started on the GPU, not over" if seen.first.started else "not over"
    behind = f"; {seen.pending - 1} more behind it, the last is {_call(seen.last)}" if seen.pending > 1 else ""
    return f"{_call(seen.first, with_tensors=True)}: {state}{behind}"


def _call(call: NcclCall, with_tensors: bool = False) -> str:
    group = f"the group {call.group}" if call.group else "the default group"
    tensors = f" of {call.tensors}" if with_tensors and call.tensors else ""
    if call.number is None:
        return f"{call.name}{tensors} in {group}"
    return f"{call.name}{tensors}, the {ordinal(call.number)} of {group}"
