"""Records which line of the user's code made each thing that a rank holds, by Python's audit events."""

from __future__ import annotations

import functools
import os
import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any, Literal

from everyrank.stack.frames import Frame, is_ours, is_users
from everyrank.stack.paths import is_of_stdlib

#: The code that changed a variable: the user's, an installed package's, or an import that runs a package's code.
Setter = Literal["user", "package", "import"]

_ENVIRONMENT = ("os.putenv", "os.unsetenv")

#: pytest sets it in each phase of a test.
_PYTESTS_VARIABLE = b"PYTEST_CURRENT_TEST"

_C10D = "torch.distributed.distributed_c10d"


class Origins:
    """The locations in the user's code that made things since ``listen()``: ``test_x.py:12``, or "" if unknown."""

    def __init__(self) -> None:
        self.listening = False
        self._installed = 0  # the process that installed the hook: a fork inherits it
        self.temporary: dict[str, str] = {}  # files and folders that tempfile made
        self._opened: dict[str, str] = {}
        self._environment: dict[str, str] = {}
        self._setters: dict[str, Setter] = {}  # by variable: the code that set it last
        self._programs: list[tuple[str, str]] = []
        self._forks: set[str] = set()
        self._threads: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._sockets: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._pipes: dict[str, str] = {}  # by their names in /proc
        self._groups: dict[str, str] = {}
        self._agent = ""
        self._wrapped: set[str] = set()
        self._handlers: dict[str, Callable[[Any, str], None]] = {
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
        """Forget what is known and record from now on, in this process only."""
        self._setters.clear()
        for records in (self.temporary, self._opened, self._environment, self._programs, self._forks, self._pipes):
            records.clear()
        if _hooks_disturb():
            self.listening = False
            return
        if not self._installed:
            sys.addaudithook(self._on_event)  # a hook cannot be removed
            self._record_threads()
            self._record_pipes()
        self._record_groups_and_agents()
        self._installed = os.getpid()
        self.listening = True

    def _on_event(self, event: str, args: Any) -> None:
        """Record one of Python's audit events. Events that are not recorded must cost nothing."""
        if event in self._handlers and self.listening:
            if event in _ENVIRONMENT:
                if args[0] == _PYTESTS_VARIABLE:
                    return
                self._setters[os.fsdecode(args[0])] = _setter(sys._getframe(1))
            location = _users_location(sys._getframe(1))
            # A socket is recorded even if its line is unknown: then no C++ library made it.
            if (location or event == "socket.__new__") and self._installed == os.getpid():
                self._handlers[event](args, location)

    def _temporary(self, args: Any, location: str) -> None:
        self.temporary[os.path.abspath(os.fsdecode(args[0]))] = location

    def _open(self, args: Any, location: str) -> None:
        if isinstance(args[0], (str, bytes)):
            self._opened[os.path.realpath(os.fsdecode(args[0]))] = location

    def _putenv(self, args: Any, location: str) -> None:
        self._environment[os.fsdecode(args[0])] = location

    def _popen(self, args: Any, location: str) -> None:
        arguments = args[1] if not isinstance(args[1], (str, bytes)) else [args[1]]
        self._programs.append((" ".join(os.fsdecode(argument) for argument in arguments), location))

    def _fork(self, _: Any, location: str) -> None:
        self._forks.add(location)

    def _record_threads(self) -> None:
        """Wrap the start of threads: not every release of Python has an audit event for it."""
        start = threading.Thread.start

        @functools.wraps(start)
        def recorded(thread: threading.Thread) -> None:
            if self.listening:
                self._threads[thread] = _users_location(sys._getframe(1))
            start(thread)

        threading.Thread.start = recorded  # type: ignore[method-assign, assignment]

    def _record_pipes(self) -> None:
        """Wrap os.pipe: Python has no audit event for it."""
        pipe = os.pipe

        @functools.wraps(pipe)
        def recorded() -> tuple[int, int]:
            ends = pipe()
            if self.listening:
                self._pipes[f"pipe:[{os.fstat(ends[0]).st_ino}]"] = _users_location(sys._getframe(1))
            return ends

        os.pipe = recorded

    def _record_groups_and_agents(self) -> None:
        """Wrap private functions of torch: users import the public ones under names that cannot be wrapped."""

        def record_group(before: set[str], location: str) -> None:
            self._groups.update(dict.fromkeys(_group_names() - before, location))

        def record_agent(_: set[str], location: str) -> None:
            self._agent = location

        # The first gives a group its name; older releases of torch have only the second.
        self._wrap(_C10D, ("_register_pg_in_world", "_new_process_group_helper"), record_group)
        self._wrap("torch.distributed.rpc.api", ("_init_rpc_states",), record_agent)

    def _wrap(self, module: str, names: tuple[str, ...], record: Callable[[set[str], str], None]) -> None:
        """Call ``record`` after the first of these functions that exists, if the module is imported."""
        imported: Any = sys.modules.get(module)
        name = next((name for name in names if hasattr(imported, name)), None)
        if name is None or module in self._wrapped:
            return
        self._wrapped.add(module)
        function = getattr(imported, name)

        @functools.wraps(function)
        def recorded(*args: Any, **keywords: Any) -> Any:
            before = _group_names()
            result = function(*args, **keywords)
            if self.listening:
                record(before, _users_location(sys._getframe(1)))
            return result

        setattr(imported, name, recorded)

    def _socket(self, args: Any, location: str) -> None:
        self._sockets[args[0]] = location

    # --- answers -----------------------------------------------------------------------------------

    def of_thread(self, thread: object) -> str:
        return self._threads.get(thread, "")

    def of_file(self, path: str) -> str:
        return self._opened.get(path, "")

    def of_socket(self, fd: int) -> str:
        return self._of_socket(fd) or ""

    def _of_socket(self, fd: int) -> str | None:
        return next((location for known, location in list(self._sockets.items()) if known.fileno() == fd), None)

    def of_pipe(self, target: str) -> str:
        return self._pipes.get(target, "")

    def is_pythons(self, fd: int, target: str) -> bool:
        """Return whether Python code is known to have made this pipe or socket."""
        return target in self._pipes or self._of_socket(fd) is not None

    def of_group(self, name: str) -> str:
        return self._groups.get(name, "")

    def of_agent(self) -> str:
        return self._agent

    def of_variable(self, name: str) -> str:
        return self._environment.get(name, "")

    def setter(self, name: str) -> Setter | None:
        """Return which code set an environment variable last; None if that is unknown."""
        return self._setters.get(name)

    def of_process(self, command: str) -> str:
        """Return the location by the process's command line. If no program matches, the process is a fork."""
        programs = {location for program, location in self._programs if program and program in command}
        locations = programs or self._forks
        return next(iter(locations)) if len(locations) == 1 else ""


def _group_names() -> set[str]:
    world = getattr(sys.modules.get(_C10D), "_world", None)
    return {str(name) for name in world.pg_names.values()} if world is not None else set()


def _hooks_disturb() -> bool:
    """Return whether an audit hook may break tracing, so that no locations can be recorded.

    Python 3.11 raises if two threads install a trace function at once, which a hook written in Python makes possible.
    coverage installs one in each thread that starts.
    """
    return sys.version_info[:2] == (3, 11) and (sys.gettrace() is not None or threading.gettrace() is not None)


def _users_location(frame: FrameType | None) -> str:
    """Return the innermost frame of the user's code, up to the frame in which this harness called pytest."""
    while frame is not None:
        owner = _owner(frame.f_code.co_filename)
        if owner == "user":
            return str(Frame(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        if owner == "ours":
            return ""
        frame = frame.f_back
    return ""


def _setter(frame: FrameType | None) -> Setter:
    """Return which code called: Python's own code and pytest's act for their caller."""
    setter: Setter | None = None
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith("<frozen importlib"):
            return "import"
        owner = _owner(file)
        if owner == "user":
            return setter or "user"
        if owner == "ours":
            break
        if not owner and not is_of_stdlib(file):
            setter = setter or ("user" if f"{os.sep}_pytest{os.sep}" in file else "package")
        frame = frame.f_back
    return setter or "user"


@functools.lru_cache(maxsize=4096)
def _owner(file: str) -> str:
    return "ours" if is_ours(file) else "user" if is_users(file) else ""


ORIGINS = Origins()
