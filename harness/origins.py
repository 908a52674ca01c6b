"""Where in the user's code a rank made what it holds: heard from Python's audit events while a test runs."""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, Literal

from everyrank.frames import Frame, is_ours, is_users
from everyrank.paths import is_stdlibs

#: Whose code changed a variable: the user's, that of an installed package, or an import that runs such code.
Setter = Literal["user", "package", "import"]

_ENVIRONMENT = ("os.putenv", "os.unsetenv")

_C10D = "torch.distributed.distributed_c10d"


class Origins:
    """What one process has made since the last ``clear()``, and where: ``test_x.py:12``, or nothing if not known."""

    def __init__(self) -> None:
        self.listening = False
        self._installed = 0  # in this process: a fork has the hook of its parent
        self.temporary: dict[str, str] = {}  # files and folders of tempfile's
        self._opened: dict[str, str] = {}
        self._environment: dict[str, str] = {}
        self._setters: dict[str, Setter] = {}  # of variables of the environment, by whoever set one last
        self._programs: list[tuple[str, str]] = []
        self._forks: set[str] = set()
        self._threads: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._sockets: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._pipes: dict[str, str] = {}  # by what /proc calls them
        self._groups: dict[str, str] = {}
        self._agent = ""
        self._wrapped: set[str] = set()
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
        self._setters.clear()
        for heard in (self.temporary, self._opened, self._environment, self._programs, self._forks, self._pipes):
            heard.clear()
        if _hooks_disturb():
            self.listening = False
            return
        if not self._installed:
            sys.addaudithook(self._hear)  # there is no way to take it out again
            self._note_threads()
            self._note_pipes()
        self._note_groups_and_agents()
        self._installed = os.getpid()
        self.listening = True

    def _hear(self, event: str, args: Any) -> None:
        """Called for each of Python's audit events: whatever is none of ours must cost nothing."""
        if event in self._notes and self.listening:
            where = _where(sys._getframe(1))
            if event in _ENVIRONMENT:
                self._setters[os.fsdecode(args[0])] = _setter(sys._getframe(1))
            # That Python made a socket counts also where the line is not known: no library in C++ did.
            if (where or event == "socket.__new__") and self._installed == os.getpid():
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

    def _note_pipes(self) -> None:
        """Python tells of no pipe."""
        pipe = os.pipe

        @functools.wraps(pipe)
        def noted() -> tuple[int, int]:
            made = pipe()
            if self.listening:
                self._pipes[f"pipe:[{os.fstat(made[0]).st_ino}]"] = _where(sys._getframe(1))
            return made

        os.pipe = noted

    def _note_groups_and_agents(self) -> None:
        """By functions that torch keeps to itself: of the public ones users have names of their own."""

        def group(before: set[str], where: str) -> None:
            self._groups.update(dict.fromkeys(_group_names() - before, where))

        def agent(_: set[str], where: str) -> None:
            self._agent = where

        # The first gives a group its name; older releases of torch have the second alone.
        self._wrap(_C10D, ("_register_pg_in_world", "_new_process_group_helper"), group)
        self._wrap("torch.distributed.rpc.api", ("_init_rpc_states",), agent)

    def _wrap(self, module: str, names: tuple[str, ...], note: Callable[[set[str], str], None]) -> None:
        """Call ``note`` after the first of these functions that the module has, once it is imported."""
        imported: Any = sys.modules.get(module)
        name = next((name for name in names if hasattr(imported, name)), None)
        if name is None or module in self._wrapped:
            return
        self._wrapped.add(module)
        function = getattr(imported, name)

        @functools.wraps(function)
        def noted(*args: Any, **keywords: Any) -> Any:
            before = _group_names()
            made = function(*args, **keywords)
            if self.listening:
                note(before, _where(sys._getframe(1)))
            return made

        setattr(imported, name, noted)

    def _socket(self, args: Any, where: str) -> None:
        self._sockets[args[0]] = where

    # --- answers -----------------------------------------------------------------------------------

    def of_thread(self, thread: object) -> str:
        return self._threads.get(thread, "")

    def of_file(self, path: str) -> str:
        return self._opened.get(path, "")

    def of_socket(self, fd: int) -> str:
        return self._of_socket(fd) or ""

    def _of_socket(self, fd: int) -> str | None:
        return next((where for known, where in list(self._sockets.items()) if known.fileno() == fd), None)

    def of_pipe(self, target: str) -> str:
        return self._pipes.get(target, "")

    def is_pythons(self, fd: int, target: str) -> bool:
        """Whether Python code made this pipe or socket, as far as it was listened to."""
        return target in self._pipes or self._of_socket(fd) is not None

    def of_group(self, name: str) -> str:
        return self._groups.get(name, "")

    def of_agent(self) -> str:
        return self._agent

    def of_variable(self, name: str) -> str:
        return self._environment.get(name, "")

    def setter(self, name: str) -> Setter | None:
        """Whose code set a variable of the environment last; None where that is not known."""
        return self._setters.get(name)

    def of_process(self, command: str) -> str:
        """By its command line; one that has ours is a fork, whose origin is known if there is but one."""
        places = {where for words, where in self._programs if words and words in command} or self._forks
        return next(iter(places)) if len(places) == 1 else ""


def _group_names() -> set[str]:
    world = getattr(sys.modules.get(_C10D), "_world", None)
    return {str(name) for name in world.pg_names.values()} if world is not None else set()


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


def _setter(frame: FrameType | None) -> Setter:
    """Python's own code, and pytest's, only hand on what somebody else asked of them."""
    found: Setter | None = None
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith("<frozen importlib"):
            return "import"
        whose = _whose(file)
        if whose == "user":
            return found or "user"
        if whose == "ours":
            break
        if not whose and not is_stdlibs(file):
            found = found or ("user" if f"{os.sep}_pytest{os.sep}" in file else "package")
        frame = frame.f_back
    return found or "user"


@functools.lru_cache(maxsize=4096)
def _whose(file: str) -> str:
    return "ours" if is_ours(file) else "user" if is_users(file) else ""


ORIGINS = Origins()
