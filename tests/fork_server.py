"""A process that has imported what inner runs import, and forks for each of them. See ``tests/forked.py``.

Start it with ``python -c TEXT SOCKET MODULES PADDING``, where TEXT is this file: stacks show ``<string>`` then, as
they show ``<frozen runpy>`` below what ``-m`` runs, and not a file that could be the user's. Each message on the
socket is a request as JSON, with the descriptors of stdin, stdout, stderr and of a pipe. A fork gets the arguments,
folder, environment and streams of the request, and goes on as ``python -m MODULE`` does; its pid and its exit code go
into the pipe. The process ends when the socket is closed.
"""

import contextlib
import ctypes
import fcntl
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import sys
import tempfile
import termios

_PR_SET_PDEATHSIG = 1
_AT_START = set(os.environ)
#: A request is one message, with these descriptors.
_LARGEST, _DESCRIPTORS = 1 << 20, 4


def serve(control: socket.socket) -> dict | None:
    """Fork for each request until the socket is closed. Return the request in a fork, and None in this process."""
    running: dict[int, tuple[int, int]] = {}  # pidfd -> pid, pipe
    while True:
        for ready in select.select([control, *running], [], [])[0]:
            if ready is not control:
                pid, pipe = running.pop(ready)
                _report(pipe, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                os.close(pipe)
                os.close(ready)
                continue
            message, descriptors, _, _ = socket.recv_fds(control, _LARGEST, _DESCRIPTORS)
            if not message:
                return None
            *streams, pipe = descriptors
            pid = os.fork()
            if pid == 0:
                control.close()
                for number, stream in enumerate(streams):
                    os.dup2(stream, number)
                for fd in (*descriptors, *running, *(pipe for _, pipe in running.values())):
                    os.close(fd)
                return json.loads(message)
            for stream in streams:
                os.close(stream)
            running[os.pidfd_open(pid)] = (pid, pipe)
            _report(pipe, pid)


def _report(pipe: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody waits for this inner run any more
        os.write(pipe, b"%d\n" % number)


def become(request: dict) -> str:
    """Make of this fork what a new interpreter would be; return the module that it has to run."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if request["leads"]:
        os.setsid()
        if os.isatty(0):
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(request["folder"])
    # Imports have set variables, some to a path in the temp folder.
    here, there = os.environ["TMPDIR"], request["environment"]["TMPDIR"]
    brought = {name: value.replace(here, there) for name, value in os.environ.items() if name not in _AT_START}
    os.environ.clear()  # of the C library, too: nothing points into the memory that is overwritten below
    os.environ.update({**brought, **request["environment"]})
    _open_streams()
    _show(request["command"], request["environment"])
    _, _, module, *arguments = sys.orig_argv = request["command"]
    sys.argv = ["-m", *arguments]
    sys.path[:] = [request["folder"], *filter(None, os.environ.get("PYTHONPATH", "").split(":")), *sys.path[1:]]
    sys.path_importer_cache.clear()
    tempfile.tempdir = None
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # as when it is imported; Python's own generator does this after each fork
    return module


def _open_streams() -> None:
    """Open the standard streams again: those of the server remember whether its own files could be sought in."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        mode, unbuffered = "w" if number else "r", old.write_through  # as PYTHONUNBUFFERED has it
        buffer = open(number, f"{mode}b", 0 if number and unbuffered else -1, closefd=False)  # noqa: SIM115
        getattr(buffer, "raw", buffer).name = f"<{name}>"
        new = io.TextIOWrapper(
            buffer,
            old.encoding,
            old.errors,
            newline="\n" if number else None,
            line_buffering=not unbuffered and (number == 2 or buffer.isatty()),
            write_through=unbuffered,
        )
        new.mode = mode
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def _show(command: list[str], environment: dict[str, str]) -> None:
    """Let /proc show the command and the environment of this fork: overwrite the memory in which it finds them."""
    with open("/proc/self/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    starts_and_ends = [int(field) for field in fields[45:49]]
    for text, start, end in (
        (command, *starts_and_ends[:2]),
        ([f"{name}={value}" for name, value in environment.items()], *starts_and_ends[2:]),
    ):
        data = b"".join(os.fsencode(line) + b"\0" for line in text)
        assert len(data) <= end - start, "the padding is too short"
        ctypes.memmove(start, data.ljust(end - start, b"\0"), end - start)


def _prepare(modules: list[str]) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # inner runs end on it; this process ends with its socket
    for name in modules:
        importlib.import_module(name)
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"{threads} threads: a fork could hang"
    gc.collect()
    gc.freeze()  # no collection in a fork copies these pages


def _run(module: str) -> None:
    """Go on as ``python -m MODULE`` does, with nothing of this module left in the namespace of ``__main__``."""
    run = runpy._run_module_as_main
    for name in [name for name in globals() if not name.startswith("__")]:
        del globals()[name]
    run(module)


if __name__ == "__main__":
    _prepare(json.loads(sys.argv[2]))
    if _request := serve(socket.socket(fileno=int(sys.argv[1]))):
        _run(become(_request))
