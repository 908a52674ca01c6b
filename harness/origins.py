"""Where in the user's code a rank made what it holds: heard from Python's audit events while a test runs."""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

from everyrank.frames import Frame, is_ours, is_users


class Origins:
    """What one process has made since the last ``clear()``, and where: ``test_x.py:12``, or nothing if not known."""

    def __init__(self) -> None:
        self.listening = False
        self._installed = 0  # in this process: a fork has the hook of its parent
        self.temporary: dict[str, str] = {}  # files and folders of tempfile's
        self._opened: dict[str, str] = {}
        self._environment: dict[str, str] = {}
        self._programs: list[tuple[str, str]] = []
        self._forks: set[str] = set()
        self._threads: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._sockets: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._notes: dict[str, Callable[[Any, str], None]] = {
            "tempfile.mkstemp": self._temporary,
            "tempfile.mkdtemp": self._temporary,
            "open": self._open,
            "os.putenv": self._putenv,
            "os.unsetenv": self._putenv,
            "subprocess.Popen": self._popen,
            "os.fork": self._fork,
            "os.forkpty": self._fork,
            "socket.__new__": self._socket,
        }

    def listen(self) -> None:
        """From now on, and for this process alone."""
        for heard in (self.temporary, self._opened, self._environment, self._programs, self._forks):
            heard.clear()
        if _hooks_disturb():
            self.listening = False
            return
        if not self._installed:
            sys.addaudithook(self._hear)  # there is no way to take it out again
            self._note_threads()
        self._installed = os.getpid()
        self.listening = True

    def _hear(self, event: str, args: Any) -> None:
        """Called for each of Python's audit events: whatever is none of ours must cost nothing."""
        if event in self._notes and self.listening:
            where = _where(sys._getframe(1))
            if where and self._installed == os.getpid():
                self._notes[event](args, where)

    def _temporary(self, args: Any, where: str) -> None:
        self.temporary[os.path.abspath(os.fsdecode(args[0]))] = where

    def _open(self, args: Any, where: str) -> None:
        if isinstance(args[0], (str, bytes)):
            self._opened[os.path.realpath(os.fsdecode(args[0]))] = where

    def _putenv(self, args: Any, where: str) -> None:
        self._environment[os.fsdecode(args[0])] = where

    def _popen(self, args: Any, where: str) -> None:
        words = args[1] if not isinstance(args[1], (str, bytes)) else [args[1]]
        self._programs.append((" ".join(os.fsdecode(word) for word in words), where))

    def _fork(self, _: Any, where: str) -> None:
        self._forks.add(where)

    def _note_threads(self) -> None:
        """Not every Python tells of threads."""
        start = threading.Thread.start

        @functools.wraps(start)
        def noted(thread: threading.Thread) -> None:
            if self.listening:
                self._threads[thread] = _where(sys._getframe(1))
            start(thread)

        threading.Thread.start = noted  # type: ignore[method-assign, assignment]

    def _socket(self, args: Any, where: str) -> None:
        self._sockets[args[0]] = where

    # --- answers -----------------------------------------------------------------------------------

    def of_thread(self, thread: object) -> str:
        return self._threads.get(thread, "")

    def of_file(self, path: str) -> str:
        return self._opened.get(path, "")

    def of_socket(self, fd: int) -> str:
        for one, where in list(self._sockets.items()):
            if one.fileno() == fd:
                return where
        return ""

    def of_variable(self, name: str) -> str:
        return self._environment.get(name, "")

    def of_process(self, command: str) -> str:
        """By its command line; one that has ours is a fork, whose origin is known if there is but one."""
        places = {where for words, where in self._programs if words and words in command} or self._forks
        return next(iter(places)) if len(places) == 1 else ""


def _hooks_disturb() -> bool:
    """Python 3.11 raises where two threads install a trace function at once, as coverage does in each thread that
    starts, and with a hook written in Python they can. Then origins are not known."""
    return sys.version_info[:2] == (3, 11) and (sys.gettrace() is not None or threading.gettrace() is not None)


def _where(frame: FrameType | None) -> str:
    """The innermost frame of the user's, up to where this harness called pytest."""
    while frame is not None:
        whose = _whose(frame.f_code.co_filename)
        if whose == "user":
            return str(Frame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        if whose == "ours":
            return ""
        frame = frame.f_back
    return ""


@functools.lru_cache(maxsize=4096)
def _whose(file: str) -> str:
    return "ours" if is_ours(file) else "user" if is_users(file) else ""


ORIGINS = Origins()
