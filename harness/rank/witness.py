"""Reports what a rank's main thread waits in: a thread answers while the main thread is in a collective.

The thread sleeps until the controller asks, which happens only when the whole world stands still (``stillness.py``).
Its report on collectives comes from torch's flight recorder. If torch has no recorder, the controller does not ask,
and the deadline decides.
"""

from __future__ import annotations

import _thread
import functools
import json
import math
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from everyrank.leaks.snapshot import Watch
from everyrank.stack.frames import Frame, is_users, standing
from everyrank.stack.running import is_method_without_arguments, running_call
from everyrank.wire.messages import Collective, WitnessStatement
from everyrank.wire.witness_pipe import path, remove

#: torch's functions that return only when other ranks have done their part. monitored_barrier() is not listed, since
#: it fails after its own time limit.
_WAIT = frozenset(
    {
        "all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_single", "all_reduce",
        "all_reduce_coalesced", "all_to_all", "all_to_all_single", "barrier", "broadcast", "gather", "recv", "reduce",
        "reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor", "scatter", "send", "_all_gather_base",
        "_reduce_scatter_base",
    }
)  # fmt: skip
_BETWEEN_TWO = ("recv", "send")
_DDP = re.compile(r"torch/nn/parallel/distributed\.py$")
#: The number of a test's last collectives that are reported.
_LAST_COLLECTIVES = 64
#: In bytes. During a larger transfer, only one thread of gloo may run for a while.
_SMALL = 16 << 20


class Witness:
    """The witness of one rank. Its thread starts with the first default group of gloo and ends with the process."""

    def __init__(self, answer: Callable[[WitnessStatement], None]) -> None:
        self._answer = answer
        self._fd = -1
        self._test = 0
        self._began = 0
        self._group: Any = None
        self._watch: Watch
        self._run_folder = ""

    def begin(self, test: int, run_folder: str, watch: Watch) -> None:
        """Begin a test: count collectives from now on, and notice each default group that the test opens."""
        self._test, self._began = test, time.time_ns()
        self._run_folder, self._watch = run_folder, watch
        self._notice_groups()

    def _notice_groups(self) -> None:
        """Wrap the function by which torch sets its default group, for the fixture's group and the tests' own."""
        c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
        update = getattr(c10d, "_update_default_pg", None)
        if update is None or hasattr(update, "__wrapped__"):
            return

        @functools.wraps(update)
        def updated(group: Any) -> None:
            update(group)
            self._group = group
            if group is not None and c10d.get_backend(group) == "gloo":
                self._began = time.time_ns()  # torch reuses the names of destroyed groups
                self._start()

        c10d._update_default_pg = updated

    def _start(self) -> None:
        if self._fd < 0 and hasattr(sys, "_current_frames") and _recorder() is not None:
            with self._watch.allowing():
                fifo = path(self._run_folder, os.getpid())
                remove(self._run_folder, os.getpid())  # of a rank that has ended: the kernel reuses process ids
                os.mkfifo(fifo, mode=0o600)
                self._fd = os.open(fifo, os.O_RDWR | os.O_CLOEXEC)
                # threading would list its thread, as a thread that the test left behind.
                _thread.start_new_thread(self._serve, ())

    def _serve(self) -> None:
        while os.read(self._fd, 1):
            try:
                statement = self._statement()
            except Exception as error:  # torch's recorder is private, and the frame belongs to another thread
                statement = WitnessStatement(
                    self._test, threading.get_native_id(), may_act=f"{type(error).__name__}: {error}"
                )
            self._answer(statement)

    def _statement(self) -> WitnessStatement:
        recorded = _recorded()
        known = [entry for entry in recorded if entry["time_created_ns"] >= self._began]
        before: dict[str, int] = {}
        for entry in recorded:
            group, number = entry["process_group"][0], entry["collective_seq_id"]
            if entry["time_created_ns"] < self._began:
                before[group] = number
            elif number == 1:
                before[group] = 0
        common = WitnessStatement(
            self._test,
            threading.get_native_id(),
            may_act=self._may_act(),
            collectives=[_collective(entry) for entry in known[-_LAST_COLLECTIVES:]],
            before=before,
        )
        return _add_wait(common, [entry for entry in known if not entry["retired"]], self._group)

    def _may_act(self) -> str:
        """Return why this rank may still act while its main thread waits; empty if it cannot."""
        import torch.distributed as dist

        threads = sys._current_frames().keys() - {threading.main_thread().ident, threading.get_ident()}
        if threads:
            return "it has other threads"
        if signal.getitimer(signal.ITIMER_REAL)[0]:
            return "it has set a timer"
        rpc = sys.modules.get("torch.distributed.rpc.api")
        if rpc is not None and rpc._is_current_rpc_agent_set():
            return "it has an RPC agent"
        if not dist.is_initialized() or dist.group.WORLD is not self._group:
            return "its default group is gone"
        return ""


def _recorder() -> Any:
    """Return torch's flight recorder, which is private; None if torch has none."""
    c10d = sys.modules.get("torch._C._distributed_c10d")
    return getattr(c10d, "_dump_fr_trace_json", None)


def _recorded() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads(_recorder()(True, False)).get("entries", [])
    return sorted((entry for entry in entries if not entry["is_p2p"]), key=lambda entry: int(entry["record_id"]))


def _collective(entry: dict[str, Any]) -> Collective:
    shapes = ", ".join(str(tuple(shape)) for shape in entry["input_sizes"] or entry["output_sizes"])
    dtypes = ", ".join(dict.fromkeys(entry["input_dtypes"] or entry["output_dtypes"]))
    return Collective(
        group=entry["process_group"][0],
        number=entry["collective_seq_id"],
        name=entry["profiling_name"].partition(":")[2],
        tensors=f"{shapes} {dtypes}".strip(),
    )


def _add_wait(statement: WitnessStatement, active: list[dict[str, Any]], default: Any) -> WitnessStatement:
    """Add the call that the main thread waits in, if that is certain."""
    import torch.distributed as dist

    frame = sys._current_frames()[threading.main_thread().ident or 0]
    stack = _stack(frame)
    operation, _, location = standing(stack).rpartition(" at ")
    backend = dist.get_backend(default)
    group, peer = default, None
    if stack[0].function in _WAIT and stack[0].file == dist.distributed_c10d.__file__:
        arguments = frame.f_locals
        group = arguments.get("group") or default
        backend = dist.get_backend(group)
        if stack[0].function in _BETWEEN_TWO:
            peer, active = _peer(arguments, group), []
        elif not active:
            return statement  # the collective has not begun yet, or has just ended
    elif active and _waits_for_work(frame, stack):
        operation = _collective(active[-1]).name
    else:
        return statement
    size = sum(map(_bytes, active)) if active else _tensor_bytes(frame)
    if backend != "gloo" or size > _SMALL or any(entry["process_group"][0] != _name(group) for entry in active):
        return statement
    return _with_wait(statement, operation, location, group, peer, active)


def _with_wait(
    statement: WitnessStatement,
    operation: str,
    location: str,
    group: Any,
    peer: int | None,
    active: list[dict[str, Any]],
) -> WitnessStatement:
    """Return the statement of a rank that waits in this call."""
    import msgspec
    import torch
    import torch.distributed as dist

    limit = group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
    return msgspec.structs.replace(
        statement,
        operation=operation,
        location=location,
        group=_name(group),
        members=dist.get_process_group_ranks(group),
        number=active[-1]["collective_seq_id"] if active else None,
        peer=peer,
        patience=min([limit, *(entry["timeout_ms"] / 1000 for entry in active)]),
    )


def _name(group: Any) -> str:
    return str(group.group_name)


def _peer(arguments: dict[str, Any], group: Any) -> int | None:
    """Return the other rank of a receive or a send; None for any rank."""
    for name in ("src", "dst"):
        if arguments.get(name) is not None:
            return int(arguments[name])
    for name in ("group_src", "group_dst"):
        if arguments.get(name) is not None:
            import torch.distributed as dist

            return dist.get_global_rank(group, int(arguments[name]))
    return None


def _stack(frame: FrameType | None) -> list[Frame]:
    found = []
    while frame is not None:
        found.append(Frame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return found


def _waits_for_work(frame: FrameType, stack: list[Frame]) -> bool:
    """Return whether the main thread is in the user's ``work.wait()``, in DDP's forward or in a backward."""
    innermost = stack[0]
    if innermost.function == "_engine_run_backward" or _DDP.search(innermost.file):
        return True
    return is_users(innermost.file) and is_method_without_arguments(running_call(frame), "wait")


def _bytes(entry: dict[str, Any]) -> int:
    """Return about how many bytes a collective transfers."""
    return sum(8 * math.prod(shape) for shape in (*entry["input_sizes"], *entry["output_sizes"]))


def _tensor_bytes(frame: FrameType) -> int:
    """Return the size of the tensor of a send or a receive, in bytes."""
    tensor = frame.f_locals.get("tensor")
    return 0 if tensor is None else int(tensor.numel() * tensor.element_size())
