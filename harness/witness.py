"""A rank's own word on what it waits in, given by a thread while the main thread is in a collective.

The thread sleeps until the controller asks, which it does only when the whole world stands still (``stillness.py``).
What it says of collectives comes from torch's flight recorder; where torch has none, nobody asks, and the deadline
decides.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import json
import linecache
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

from everyrank.frames import Frame, is_users, standing
from everyrank.leaks import Watch
from everyrank.record import Collective, WitnessStatement

#: torch's functions that return when other ranks have done their part, not before. monitored_barrier() is none: it
#: is there to fail after a time of its own.
_WAIT = frozenset(
    {
        "all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_single", "all_reduce",
        "all_reduce_coalesced", "all_to_all", "all_to_all_single", "barrier", "broadcast", "gather", "recv", "reduce",
        "reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor", "scatter", "send", "_all_gather_base",
        "_reduce_scatter_base",
    }
)  # fmt: skip
_BETWEEN_TWO = ("recv", "send")
#: A line of the user's that waits for an asynchronous collective, without a time limit.
_WAITS_FOR_WORK = re.compile(r"\.wait\(\s*\)")
_DDP = re.compile(r"torch/nn/parallel/distributed\.py$")
#: So many of a test's last collectives are told.
_MOST = 64
#: A transfer of more bytes may take a while in which nothing but one thread of gloo's moves.
_SMALL = 16 << 20


def path(run_folder: str, pid: int | None) -> str:
    """Where a rank is asked: a FIFO in the run's folder."""
    return os.path.join(run_folder, f"witness-{pid}")


def remove(run_folder: str, pid: int | None) -> None:
    """For a rank that has ended: it leaves in a hurry."""
    with contextlib.suppress(OSError):  # most have none
        os.unlink(path(run_folder, pid))


class Witness:
    """One rank's. Its thread starts with the first default group of gloo, and stays as long as the process."""

    def __init__(self, answer: Callable[[WitnessStatement], None]) -> None:
        self._answer = answer
        self._fd = -1
        self._test = 0
        self._began = 0
        self._group: Any = None
        self._watch: Watch
        self._run_folder = ""

    def begin(self, test: int, run_folder: str, watch: Watch) -> None:
        """A test begins: count collectives from here, and see each default group that is opened in it."""
        self._test, self._began = test, time.time_ns()
        self._run_folder, self._watch = run_folder, watch
        self._see_groups()

    def _see_groups(self) -> None:
        """Wrap the function by which torch sets its default group: the fixture's group and a test's own pass it."""
        c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
        update = getattr(c10d, "_update_default_pg", None)
        if update is None or hasattr(update, "__wrapped__"):
            return

        @functools.wraps(update)
        def updated(group: Any) -> None:
            update(group)
            self._group = group
            if group is not None and c10d.get_backend(group) == "gloo":
                self._began = time.time_ns()  # torch gives out the names of destroyed groups again
                self._start()

        c10d._update_default_pg = updated

    def _start(self) -> None:
        if self._fd < 0 and hasattr(sys, "_current_frames") and _recorder() is not None:
            with self._watch.allowing():
                fifo = path(self._run_folder, os.getpid())
                remove(
                    self._run_folder, os.getpid()
                )  # of another rank, long gone: the kernel gives numbers out again
                os.mkfifo(fifo, mode=0o600)
                self._fd = os.open(fifo, os.O_RDWR | os.O_CLOEXEC)
                # threading would list this thread, as one that the test has left behind.
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
        known = [one for one in recorded if one["time_created_ns"] >= self._began]
        before: dict[str, int] = {}
        for one in recorded:
            group, number = one["process_group"][0], one["collective_seq_id"]
            if one["time_created_ns"] < self._began:
                before[group] = number
            elif number == 1:
                before[group] = 0
        common = WitnessStatement(
            self._test,
            threading.get_native_id(),
            may_act=self._may_act(),
            collectives=[_collective(one) for one in known[-_MOST:]],
            before=before,
        )
        return _waiting(common, [one for one in known if not one["retired"]], self._group)

    def _may_act(self) -> str:
        """Why this rank may still answer others, whatever its main thread does."""
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
    """torch's flight recorder, which is private."""
    c10d = sys.modules.get("torch._C._distributed_c10d")
    return getattr(c10d, "_dump_fr_trace_json", None)


def _recorded() -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = json.loads(_recorder()(True, False)).get("entries", [])
    return sorted((one for one in entries if not one["is_p2p"]), key=lambda one: int(one["record_id"]))


def _collective(one: dict[str, Any]) -> Collective:
    shapes = ", ".join(str(tuple(shape)) for shape in one["input_sizes"] or one["output_sizes"])
    kinds = ", ".join(dict.fromkeys(one["input_dtypes"] or one["output_dtypes"]))
    return Collective(
        group=one["process_group"][0],
        number=one["collective_seq_id"],
        name=one["profiling_name"].partition(":")[2],
        tensors=f"{shapes} {kinds}".strip(),
    )


def _waiting(said: WitnessStatement, active: list[dict[str, Any]], default: Any) -> WitnessStatement:
    """What the main thread waits in; as it was, where that is not certain."""
    import torch.distributed as dist

    frame = sys._current_frames()[threading.main_thread().ident or 0]
    stack = _stack(frame)
    operation, _, where = standing(stack).rpartition(" at ")
    backend = dist.get_backend(default)
    group, peer = default, None
    if stack[0].function in _WAIT and stack[0].file == dist.distributed_c10d.__file__:
        arguments = frame.f_locals
        group = arguments.get("group") or default
        backend = dist.get_backend(group)
        if stack[0].function in _BETWEEN_TWO:
            peer, active = _peer(arguments, group), []
        elif not active:
            return said  # it has not begun yet, or has ended just now
    elif active and _waits_for_work(stack):
        operation = _collective(active[-1]).name
    else:
        return said
    size = sum(map(_bytes, active)) if active else _bytes_here(frame)
    if backend != "gloo" or size > _SMALL or any(one["process_group"][0] != _name(group) for one in active):
        return said
    return _said_to_wait(said, operation, where, group, peer, active)


def _said_to_wait(
    said: WitnessStatement, operation: str, where: str, group: Any, peer: int | None, active: list[dict[str, Any]]
) -> WitnessStatement:
    """The statement of a rank that waits in this."""
    import msgspec
    import torch
    import torch.distributed as dist

    own = group._get_backend(torch.device("cpu")).options._timeout.total_seconds()
    return msgspec.structs.replace(
        said,
        operation=operation,
        location=where,
        group=_name(group),
        members=dist.get_process_group_ranks(group),
        number=active[-1]["collective_seq_id"] if active else None,
        peer=peer,
        patience=min([own, *(one["timeout_ms"] / 1000 for one in active)]),
    )


def _name(group: Any) -> str:
    return str(group.group_name)


def _peer(arguments: dict[str, Any], group: Any) -> int | None:
    """The rank that a receive or a send is with; None for any."""
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


def _waits_for_work(stack: list[Frame]) -> bool:
    """Whether the main thread is in the user's ``work.wait()``, or where DDP waits: in its forward or a backward."""
    innermost = stack[0]
    if innermost.function == "_engine_run_backward" or _DDP.search(innermost.file):
        return True
    line = linecache.getline(innermost.file, innermost.line) if is_users(innermost.file) else ""
    return bool(_WAITS_FOR_WORK.search(line))


def _bytes(one: dict[str, Any]) -> int:
    """What a collective moves, about."""
    return sum(8 * math.prod(shape) for shape in (*one["input_sizes"], *one["output_sizes"]))


def _bytes_here(frame: FrameType) -> int:
    """What the tensor of a send or a receive comes to."""
    tensor = frame.f_locals.get("tensor")
    return 0 if tensor is None else int(tensor.numel() * tensor.element_size())
