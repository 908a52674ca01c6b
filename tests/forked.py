"""Start an inner run as a fork of a process that has already imported torch and pytest.

An inner run with one test on two ranks takes 2.4 s of processor time, and 0.25 s as such a fork. The fork is
otherwise what ``subprocess.Popen`` starts: a process with its own folder, environment, streams and exit code.
Plugins of other packages and the run's own files are never imported beforehand; of everyrank, what each run of
multi-rank tests imports, as pytest imports it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _pytest.config import default_plugins

#: A project or a test sets these. Nothing that a server imports reads them, except TMPDIR: see ``fork_server.py``.
_OF_A_PROJECT = (
    *("EVERYRANK_", "INNER_", "COLUMNS", "LINES", "TERM", "PYTHONPATH", "TMPDIR", "CUDA_VISIBLE_DEVICES"),
    *("RANK", "WORLD_SIZE", "MASTER_", "PYTEST_PLUGINS", "PYTEST_DISABLE_PLUGIN_AUTOLOAD"),
)
#: numpy's OpenBLAS starts a thread for each core when it is imported, and a process with threads must not fork.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}
#: The server is started with arguments and an environment this long, for its forks to show their own in /proc.
_PADDING = 100_000
_LARGEST = 1 << 20
#: Runs the server's program in a namespace of its own: that of ``__main__`` stays empty for a fork.
_START = """exec(__import__("sys").argv[4], {"__name__": "tests.fork_server"})"""


_IMPORT = re.compile(
    r"^(?:import|from) [^#\n]*?\b(?:(?P<internal>torch\.testing\._internal)"
    r"|(?P<large>everyrank\.suites|torch\.distributed\.(?:fsdp|optim|tensor))"
    r"|torch|everyrank\.(?:testcase|fixtures\.\w+))\b",
    re.MULTILINE,
)
#: A run of multi-rank tests imports torch in its ranks, so its server may have it, unless a file looks at what the
#: run imports or starts.
_RANKS, _LOOKS = re.compile(r"\bworld\b"), re.compile(r"\bsys\.(?:modules|addaudithook)\b")
_PYTEST = ("pytest", *(f"_pytest.{name}" for name in default_plugins))
#: What each run of multi-rank tests imports of everyrank: plugins, and what these import for the first such test.
EVERYRANK = (
    *("everyrank.plugin", "everyrank.fixtures.plugin", "everyrank.suites.plugin", "everyrank.reports.plugin"),
    *("everyrank.controller.controller", "everyrank.launch.fork", "everyrank.reports.live.live_run"),
)
_TORCH = (*_PYTEST, "msgspec", "numpy.random", "torch", "torch.distributed", *EVERYRANK)
#: Every contract imports ``torch._dynamo``, and so do these modules of torch. Its test cases import Hypothesis, too,
#: of which pytest then warns that it came too early.
_LARGE = (*_TORCH, "torch.distributed.optim")
_INTERNAL = (*_TORCH, "torch.testing._internal.common_distributed")


class ForkedRun:
    """A process that a server forked. It has the part of ``subprocess.Popen`` that the tests use."""

    def __init__(self, command: list[str], stdout: int, pipe: int) -> None:
        self.args = command
        self.returncode: int | None = None
        # At a terminal, nothing comes here.
        self.stdout = open(stdout, encoding="utf-8", errors="replace")  # noqa: SIM115
        self._out = b""
        self._pipe = open(pipe, "rb", buffering=0)  # noqa: SIM115
        self.pid = self._number()

    def _number(self) -> int:
        """Wait for the next line of the pipe: the pid first, then the exit code."""
        line = self._pipe.readline()
        if not line:
            raise AssertionError("the fork server died")
        return int(line)

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._pipe], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            self.returncode = self._number()
            self._pipe.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """Read stdout until its end, and wait for the process. After a ``TimeoutExpired``, call this again."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self.stdout.closed:
            if not select.select([self.stdout], [], [], _left(until))[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            if chunk := os.read(self.stdout.fileno(), 1 << 16):
                self._out += chunk
            else:
                self.stdout.close()
        self.wait(_left(until))
        return self._out.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n"), None


def _left(until: float | None) -> float | None:
    return None if until is None else max(0.0, until - time.monotonic())


#: A program that runs another one, a script in Python, as a fork of a server. It begins as pip's programs do if the
#: path of Python has a space, which "#!" does not take.
_PROGRAM = """\
#!/bin/sh
'''exec' "{python}" -IS "$0" "$@"
' '''
import json, os, signal, socket, sys

read, write = os.pipe()
command = ["{python}", "{script}", *sys.argv[1:]]
request = {{"command": command, "folder": os.getcwd(), "environment": dict(os.environ), "leads": False}}
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
    door.connect("{door}")
    socket.send_fds(door, [json.dumps(request).encode()], [0, 1, 2, write])
os.close(write)
with open(read) as answers:
    _, code = map(int, answers)
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
"""


class ForkServer:
    """A process that has imported some modules, and its socket. Programs come in through the door, a path."""

    def __init__(self, modules: tuple[str, ...], environment: dict[str, str], door: Path) -> None:
        program = Path(__file__).with_name("fork_server.py").read_text()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._door = door
        with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(str(door))
            listening.listen()
            fds = [theirs.fileno(), listening.fileno()]
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, *map(str, fds), json.dumps(modules), program, " " * _PADDING],
                env={**environment, **_ONE_THREAD, "PADDING": " " * _PADDING},
                stdin=subprocess.DEVNULL,
                pass_fds=fds,
            )

    def write_programs(self, folder: Path, *names: str) -> None:
        """Write programs into a folder that do what those of this environment do, as forks of this server."""
        folder.mkdir()
        for name in names:
            script, python = Path(sys.executable).with_name(name), sys.executable
            (folder / name).write_text(_PROGRAM.format(python=python, script=script, door=self._door))
            (folder / name).chmod(0o755)

    def start(
        self,
        command: list[str],
        folder: Path,
        environment: dict[str, str],
        err: int | None = None,
        terminal: int | None = None,
        new_session: bool = False,
    ) -> ForkedRun:
        """Fork a process that runs the command, with its stderr in ``err`` or else in its stdout.

        With ``terminal``, the process leads a session there, and has its three streams there.
        """
        about = {"command": command, "folder": str(folder), "environment": environment}
        request = json.dumps({**about, "leads": new_session or terminal is not None}).encode()
        assert len(request) < _LARGEST
        (out, their_out), (pipe, their_pipe) = os.pipe(), os.pipe()
        with open(os.devnull) as nothing:
            streams = [nothing.fileno(), their_out, their_out if err is None else err]
            if terminal is not None:
                streams = [terminal] * 3
            socket.send_fds(self._socket, [request], [*streams, their_pipe])
        os.close(their_out)
        os.close(their_pipe)
        return ForkedRun(command, out, pipe)

    def close(self) -> None:
        """End the server: it ends with its socket."""
        self._socket.close()
        assert self._process.wait(60) == 0

    @property
    def pid(self) -> int:
        return self._process.pid


class ForkServers:
    """The servers of one session; each starts when the first run needs it."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._servers: dict[tuple[str, ...], ForkServer] = {}
        self._temp = tempfile.TemporaryDirectory(prefix="fork-servers-")
        self._environment = _shared({**environment, "PYTHONDONTWRITEBYTECODE": "1"})

    def find(self, command: list[str], folder: Path, environment: dict[str, str]) -> ForkServer | None:
        """Return the server that has imported what the files of the run import first, or None if no fork will do."""
        if command[0] != sys.executable or _has_startup_code(environment):
            return None
        if _shared(environment) != self._environment:  # a variable may be read at the start, or by an import
            return None
        texts = [path.read_text(errors="replace") for path in folder.rglob("*.py")]
        imports = [found for text in texts for found in _IMPORT.finditer(text)]
        torch = imports or (any(map(_RANKS.search, texts)) and not any(map(_LOOKS.search, texts)))
        modules = _TORCH if torch else _PYTEST
        for kind, larger in (("large", _LARGE), ("internal", _INTERNAL)):
            if any(found[kind] for found in imports):
                modules = larger
        if modules not in self._servers:
            door = Path(self._temp.name, f"{len(self._servers)}.door")
            self._servers[modules] = ForkServer(modules, {**self._environment, "TMPDIR": self._temp.name}, door)
        return self._servers[modules]

    def close(self) -> None:
        for server in self._servers.values():
            server.close()
        self._temp.cleanup()


def _has_startup_code(environment: dict[str, str]) -> bool:
    """Return whether an interpreter with this environment would import a ``sitecustomize``."""
    return any(
        Path(path, "sitecustomize.py").exists() for path in environment.get("PYTHONPATH", "").split(os.pathsep)
    )


def _shared(environment: dict[str, str]) -> dict[str, str]:
    """Return the part of an environment that is the same for all projects."""
    return {name: value for name, value in environment.items() if not name.startswith(_OF_A_PROJECT)}
