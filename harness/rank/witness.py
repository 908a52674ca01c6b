"""Reports what a rank's main thread waits in: a thread answers while the main thread is in a collective.

The thread sleeps until the controller asks, which happens only when the whole world stands still (``stillness.py``).
Its report on collectives comes from torch's flight recorder. If torch has no recorder, the controller does not ask,
and the deadline decides. At a deadline it is asked what NCCL's recorder shows.
"""

from __future__ import annotations

import _thread
import concurrent.futures.thread
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, Protocol

import msgspec
from everyrank.rank import awaited, handling, idle_children, nccl, recorder
from everyrank.rank.main_wait import Groups, MainWait, stack_of
from everyrank.stack.frames import users_frame
from everyrank.wire.messages import OnNccl, WitnessStatement
from everyrank.wire.witness_pipe import NCCL, path, remove

#: The number of a test's last collectives that are reported.
_LAST_COLLECTIVES = 64
#: Functions of Python's library in which a thread waits for another thread of its process.
_IDLE = {
    threading.__file__: {"wait", "acquire", "join", "_wait_for_tstate_lock"},
    concurrent.futures.thread.__file__: {"_worker"},
}


class Allows(Protocol):
    """Watches for leaks, if anybody does."""

    def allowing(self) -> AbstractContextManager[None]:
        """Ignore what is made in this context."""


class Witness:
    """The witness of one rank. Its thread starts with the first default group of gloo or NCCL, or RPC agent."""

    def __init__(self, answer: Callable[[WitnessStatement | OnNccl], None]) -> None:
        self._answer = answer
        self._fd = -1
        self._test = 0
        self._began = 0
        self._group: Any = None
        self._made_at: dict[str, str] = {}  # by group: the user's line that made it
        self._watch: Allows
        self._run_folder = ""

    def begin(self, test: int, run_folder: str, watch: Allows) -> None:
        """Begin a test: count collectives from now on, and notice each group that the test opens."""
        self._test, self._began = test, time.time_ns()
        self._run_folder, self._watch = run_folder, watch
        self._notice_groups()
        self._notice_agents()

    def _notice_groups(self) -> None:
        """Wrap the function by which torch sets its default group, for the fixture's group and the tests' own."""
        c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
        update = getattr(c10d, "_update_default_pg", None)
        if update is None or hasattr(update, "__wrapped__"):
            return
        with self._watch.allowing():
            nccl.turn_on()

        @functools.wraps(update)
        def updated(group: Any) -> None:
            update(group)
            self._group = group
            if group is None:
                self._made_at.clear()
            if group is not None and is_recorded(c10d.get_backend(group)):
                self._began = time.time_ns()  # torch reuses the names of destroyed groups
                self._start()

        c10d._update_default_pg = updated
        register = getattr(c10d, "_register_process_group", None)
        if register is None:
            return

        @functools.wraps(register)
        def registered(name: Any, group: Any) -> None:
            register(name, group)
            self._made_at[str(name)] = users_frame(2)

        c10d._register_process_group = registered

    def _notice_agents(self) -> None:
        """Wrap the function by which an RPC agent starts: agents may wait for each other without any group."""
        api: Any = sys.modules.get("torch.distributed.rpc.api")
        begin = getattr(api, "_set_and_start_rpc_agent", None)
        if begin is None or hasattr(begin, "__wrapped__"):
            return

        @functools.wraps(begin)
        def began(agent: Any) -> None:
            self._start()
            begin(agent)

        api._set_and_start_rpc_agent = began

    def _start(self) -> None:
        if self._fd < 0 and hasattr(sys, "_current_frames"):
            with self._watch.allowing():
                fifo = path(self._run_folder, os.getpid())
                remove(self._run_folder, os.getpid())  # of a rank that has ended: the kernel reuses process ids
                os.mkfifo(fifo, mode=0o600)
                self._fd = os.open(fifo, os.O_RDWR | os.O_CLOEXEC)
                # threading would list its thread, as a thread that the test left behind.
                _thread.start_new_thread(self._serve, ())

    def _serve(self) -> None:
        while question := os.read(self._fd, 1):
            if question == NCCL:
                self._answer(nccl.report(self._test, self._began))
                continue
            try:
                statement = self.statement()
            except Exception as error:  # torch's recorder is private, and the frame belongs to another thread
                statement = WitnessStatement(
                    self._test, threading.get_native_id(), may_act=f"{type(error).__name__}: {error}"
                )
            self._answer(statement)

    def statement(self) -> WitnessStatement:
        """State what the main thread waits in, and which collectives this test has done."""
        recorded = recorder.entries(with_stacks=True)
        known = [entry for entry in recorded if entry["time_created_ns"] >= self._began]
        before: dict[str, int] = {}
        reached: dict[str, int] = {}
        for entry in recorded:
            group, number = entry["process_group"][0], entry["collective_seq_id"]
            if entry["time_created_ns"] < self._began:
                before[group] = number
                continue
            reached[group] = number
            if number == 1:
                before[group] = 0
        frame = sys._current_frames()[threading.main_thread().ident or 0]
        groups = Groups.known(self._group, self._made_at)
        common = WitnessStatement(
            self._test,
            threading.get_native_id(),
            stack=[(frame.file, frame.line, frame.function) for frame in stack_of(frame)],
            may_act=self._may_act(),
            collectives=[recorder.collective(entry) for entry in known[-_LAST_COLLECTIVES:]],
            before=before,
            reached=reached,
            calls={group: calls for group, calls in recorder.calls(known).items() if group in before},
            idle_children=idle_children.pids(),
            handles=handling.handled(),
            awaits=awaited.awaited(frame),
            threads=awaited.by_threads(threading.get_ident(), groups),
            position=(0, 0) if self._group is None else (self._group.rank(), self._group.size()),
        )
        begun = [entry for entry in known if not entry["retired"]]
        statement = MainWait(frame, begun, groups).add_to(common)
        if statement.kind != "message" or statement.operation == "wait":
            return statement
        awaits = awaited.message(statement.operation, statement.peer, statement.tag)
        return msgspec.structs.replace(statement, awaits=awaits)

    def _may_act(self) -> str:
        """Return why this rank may still act while its main thread waits; empty if it cannot."""
        import torch.distributed as dist

        frames = sys._current_frames()
        for thread in frames.keys() - {threading.main_thread().ident, threading.get_ident()}:
            if not _is_idle(frames[thread]):
                return "it has other threads"
        if signal.getitimer(signal.ITIMER_REAL)[0]:
            return "it has set a timer"
        rpc = sys.modules.get("torch.distributed.rpc.api")
        if rpc is not None and rpc._is_current_rpc_agent_set():
            return "it has an RPC agent"
        if not dist.is_initialized() or dist.group.WORLD is not self._group:
            return "its default group is gone"
        return ""


def is_recorded(backend: str) -> bool:
    """Return whether torch records what is called on groups of this backend, so that there is something to report."""
    return (backend == "gloo" and recorder.exists()) or ("nccl" in backend and nccl.has_recorder())


def _is_idle(frame: FrameType) -> bool:
    """Return whether a thread waits for another thread of this process; the controller sees whether for ever."""
    return frame.f_code.co_name in _IDLE.get(frame.f_code.co_filename, ())
