"""What a rank of a script does so that it can be watched. It runs before the script, and imports no torch.

It announces itself; its witness, in a thread, answers while the main thread waits; an exception that ends it is
written down before torchrun ends the other ranks.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType, TracebackType
from typing import Any

from everyrank.rank.failure_text import describe_exception
from everyrank.rank.witness import Witness
from everyrank.scripts.folder import PYTEST, VARIABLE, Raised, ScriptFolder, ScriptRank, folder_of_run
from everyrank.stack.frames import Frame
from everyrank.wire import torchrun_variables
from everyrank.wire.messages import OnNccl, WitnessStatement

#: Makes a finder that calls a function when a module of this name has been imported.
AfterImport = Callable[[str, Callable[[ModuleType], object]], Any]

_C10D = "torch.distributed.distributed_c10d"
#: The number of the test for the witness: a script is one.
TEST = 1


def start(after_import: AfterImport) -> None:
    """Let this process be watched if it is a rank of a script. Its own children are not."""
    folder = folder_of_run(os.environ, os.getppid())
    os.environ.pop(VARIABLE, None)
    pytest = os.environ.pop(PYTEST, "")
    if folder is None or _runs_pytest():
        return
    rank = torchrun_variables.rank()
    process = ScriptRank(
        rank,
        torchrun_variables.size(),
        os.getpid(),
        os.getppid(),
        _script(),
        torchrun_variables.error_file(),
        pytest,
    )
    if not folder.announce(process):
        return
    if folder.take("watcher"):
        _start_watcher(folder)
    watched = _Watched(folder, rank)
    atexit.register(watched.leave)
    sys.excepthook = watched.reports(sys.excepthook)
    sys.meta_path.insert(0, after_import(_C10D, watched.begin))


def _runs_pytest() -> bool:
    """Return whether this is a pytest, which may have ranks of its own."""
    return any(os.path.basename(word) in ("pytest", "py.test") for word in sys.orig_argv)


def _script() -> str:
    """Return what torchrun was asked to run: ``script.py``, or the module after ``-m``."""
    words = [word for word in sys.orig_argv[1:] if not word.startswith("-")]
    return os.path.basename(words[0]) if words else "a script"


def _start_watcher(folder: ScriptFolder) -> None:
    """Start the watcher as nobody's child: a world with children is never found to stand still."""
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        os.posix_spawn(
            sys.executable,
            [sys.executable, "-m", "everyrank.scripts.watcher", str(folder.path)],
            torchrun_variables.without_rank(os.environ),
            file_actions=[(os.POSIX_SPAWN_DUP2, null, number) for number in range(3)],
        )
    finally:
        os._exit(0)


class _Watched:
    """This process, as its watcher sees it."""

    def __init__(self, folder: ScriptFolder, rank: int) -> None:
        self._folder = folder
        self._rank = rank
        self._pid = os.getpid()
        self._witness = Witness(self._answer)

    def begin(self, c10d: ModuleType) -> None:
        """Begin to notice groups and collectives: torch.distributed has just been imported."""
        self._witness.begin(TEST, str(self._folder.path), _Unwatched())

    def leave(self) -> None:
        """Write down that this process ends on its own, and which collectives it has done."""
        if os.getpid() != self._pid:  # a fork of the rank
            return
        try:
            statement = self._witness.statement()
        except Exception:  # it has not imported torch, or torch's recorder has changed
            statement = WitnessStatement(TEST, 0)
        self._folder.write(f"left-{self._rank}", statement)

    def reports(self, usual: Callable[..., Any]) -> Callable[..., Any]:
        """Return a hook for exceptions that ends the rank as usual, but lets the watcher look at the others first."""

        def excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            usual(kind, error, trace)
            if os.getpid() != self._pid or issubclass(kind, KeyboardInterrupt):
                return
            with contextlib.suppress(Exception):
                frames = [
                    Frame(frame.filename, frame.lineno or 0, frame.name) for frame in traceback.extract_tb(trace)
                ]
                self._folder.write(
                    f"raised-{self._rank}", Raised(*describe_exception(error, frames), time.monotonic())
                )
                self._folder.await_verdict()

        return excepthook

    def _answer(self, statement: WitnessStatement | OnNccl) -> None:
        with contextlib.suppress(OSError):
            self._folder.write(f"stated-{self._rank}", statement)


class _Unwatched:
    """Nobody looks for leaks in a script."""

    def allowing(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()
