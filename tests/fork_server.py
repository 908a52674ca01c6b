"""A process that has imported what inner runs import, and forks for each of them. See ``tests/forked.py``.

``tests/forked.py`` starts it by ``python -c``, with the text of this file: stacks show ``<string>`` then, as they
show ``<frozen runpy>`` below what ``-m`` runs, and not a file that could be the user's. The namespace of ``__main__``
stays empty. Each message on the socket is a request as JSON, with the descriptors of stdin, stdout, stderr and of a
pipe. A fork gets the arguments, folder, environment and streams of the request, and goes on as a new interpreter with
these arguments does; its pid and its exit code go into the pipe. The process ends when the socket is closed.

A run may start interpreters of its own: workers of pytest-xdist, torchrun's processes, the keeper of spawned ranks.
Forks of the run would not be new interpreters. So forks of the server, made before the run begins, wait for its
commands, and ``subprocess`` and ``os.execve`` use them as long as there are any. They are children of the run, as
what it starts must be.
"""

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib.machinery
import inspect
import io
import itertools
import json
import os
import re
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import threading
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

_PR_SET_PDEATHSIG = 1
_AT_START = set(os.environ)
#: A request is one message, with these descriptors.
_LARGEST, _DESCRIPTORS = 1 << 20, 4
#: A command may have more, which keep their numbers. They come in above these, so that none takes another's.
_ABOVE = 200
#: A variable that says how many more interpreters a run starts than its arguments show.
_MORE = "INNER_INTERPRETERS"
#: The keeper of spawned ranks gets variables that the start of an interpreter reads; they have no effect on a fork.
_KEEPER = "everyrank.rank.spawned"
#: The flags of an interpreter that a fork can follow, and those before a module or a program.
_FLAGS, _WAYS = ("-u", "-B"), ("-m", "-c")
#: How many interpreters a run starts, by its arguments: pytest-xdist's workers, or torchrun's processes.
_STARTS = re.compile(r"(?:-n ?|--numprocesses[= ]|--nproc-per-node=)(auto|logical|\d+)")

#: Forks of this process that wait for commands: their pids and sockets.
Waiting = list[tuple[int, socket.socket]]


def serve(control: socket.socket, door: socket.socket) -> dict | None:
    """Fork for each request until the first socket is closed. Return the request in a fork, and None in this process.

    Programs come through the door, one request each.
    """
    running: dict[int, tuple[int, int]] = {}  # pidfd -> pid, pipe
    while True:
        for ready in select.select([control, door, *running], [], [])[0]:
            if isinstance(ready, int):
                pid, pipe = running.pop(ready)
                _report(pipe, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                os.close(pipe)
                os.close(ready)
                continue
            connection = ready if ready is control else ready.accept()[0]
            message, descriptors, _, _ = socket.recv_fds(connection, _LARGEST, _DESCRIPTORS)
            if connection is not control:
                connection.close()
            if not message and connection is control:
                return None
            if not message:
                continue  # a program that was ended at once
            *streams, pipe = descriptors
            pid = os.fork()
            if pid == 0:
                control.close()
                door.close()
                _have(streams, range(3))
                for fd in (pipe, *running, *(pipe for _, pipe in running.values())):
                    os.close(fd)
                return json.loads(message)
            for stream in streams:
                os.close(stream)
            running[os.pidfd_open(pid)] = (pid, pipe)
            _report(pipe, pid)


def _report(pipe: int, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody waits for this inner run any more
        os.write(pipe, b"%d\n" % number)


def _have(descriptors: list[int], numbers: Sequence[int]) -> None:
    """Give descriptors these numbers."""
    lifted = [fcntl.fcntl(fd, fcntl.F_DUPFD, _ABOVE) for fd in descriptors]
    for fd in descriptors:
        os.close(fd)
    for fd, number in zip(lifted, numbers, strict=True):
        os.dup2(fd, number)
        os.close(fd)


def lead(request: dict) -> None:
    """Make a session of this process, if the request asks for one; a terminal becomes its own."""
    if request["leads"]:
        os.setsid()
        if os.isatty(0):
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def fork_waiting(request: dict) -> dict | None:
    """Fork what waits for commands of this process. Return the command of such a fork, and None in this process.

    The forks end with this process.
    """
    waiting: Waiting = []
    for _ in range(_interpreters(request["command"]) + int(request["environment"].pop(_MORE, 0))):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if pid == 0:
            for _, other in (*waiting, (0, ours)):
                other.close()
            return _wait_for_command(theirs)
        theirs.close()
        waiting.append((pid, ours))
    if waiting:
        usual = _read_early(request["environment"])
        _let_subprocess_use(waiting, usual)
        _let_exec_use(waiting, usual)
    return None


def _interpreters(command: list[str]) -> int:
    """Return how many interpreters a command starts, as far as its arguments say it."""
    if "everyrank" in command[:3]:
        return 1  # it becomes pytest
    counts = [
        found[1] for found in map(_STARTS.fullmatch, [*command, *map(" ".join, itertools.pairwise(command))]) if found
    ]
    return sum(int(count) if count.isdigit() else os.cpu_count() or 1 for count in counts)


def _wait_for_command(control: socket.socket) -> dict:
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    message, descriptors, _, _ = socket.recv_fds(control, _LARGEST, _ABOVE)
    if not message:
        os._exit(0)
    request = json.loads(message)
    if not request["dies"]:
        prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)
    control.close()
    _have(descriptors, request["numbers"])
    lead(request)
    return request


def _give(waiting: Waiting, streams: list[int], passed: Sequence[int] = (), **request: Any) -> int:
    """Let the first that waits become this interpreter; return its pid."""
    pid, control = waiting.pop(0)
    with control:
        request["numbers"] = [0, 1, 2, *passed]
        socket.send_fds(control, [json.dumps(request).encode()], [*streams, *passed])
    return pid


def _let_subprocess_use(waiting: Waiting, usual: dict[str, str]) -> None:
    """Let ``subprocess.Popen`` start an interpreter by one of these processes, if it asks for nothing unusual."""
    really = subprocess.Popen._execute_child  # type: ignore[attr-defined]
    signature = inspect.signature(really)

    def execute_child(self: Any, *args: Any, **options: Any) -> None:
        asked = signature.bind(self, *args, **options).arguments
        environment = dict(os.environ if asked["env"] is None else asked["env"])
        more = any(asked[name] for name in ("executable", "preexec_fn", "shell"))
        if not waiting or more or not _is_usual(asked["args"]) or not _may_differ(asked["args"], environment, usual):
            really(self, *args, **options)
            return
        streams = [asked["p2cread"], asked["c2pwrite"], asked["errwrite"]]
        self.pid = _give(
            waiting,
            [number if fd == -1 else fd for number, fd in enumerate(streams)],
            asked["pass_fds"],
            command=list(asked["args"]),
            folder=str(asked["cwd"] or os.getcwd()),
            environment=environment,
            leads=asked["start_new_session"],
            dies=False,
        )
        self._child_created = True
        self._close_pipe_fds(*(asked[f"{pipe}{end}"] for pipe in ("p2c", "c2p", "err") for end in ("read", "write")))

    subprocess.Popen._execute_child = execute_child  # type: ignore[attr-defined]


def _let_exec_use(waiting: Waiting, usual: dict[str, str]) -> None:
    """Let ``os.execve`` replace this process by one of these processes: this one stays, and ends as that one does."""
    really = os.execve

    def execve(path: str, arguments: list[str], environment: dict[str, str]) -> None:
        if not waiting or path != sys.executable or not _is_usual(arguments) or _read_early(environment) != usual:
            really(path, arguments, environment)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the other one gets it, too
        pid = _give(
            waiting,
            [0, 1, 2],
            command=list(arguments),
            folder=os.getcwd(),
            environment=dict(environment),
            leads=False,
            dies=True,
        )
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if code < 0:
            signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        os._exit(code)

    os.execve = execve


def _may_differ(command: Sequence[str], environment: Mapping[str, str], usual: dict[str, str]) -> bool:
    return _KEEPER in command or _read_early(environment) == usual


def _read_early(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that the start of an interpreter reads."""
    return {name: value for name, value in environment.items() if name.startswith(("PYTHON", "LD_"))}


def _is_usual(command: Any) -> bool:
    """Return whether a command is this interpreter with a module, program or script, and with known flags only."""
    if isinstance(command, str | bytes | os.PathLike):
        return False
    python, *arguments = command
    rest = [*itertools.dropwhile(_FLAGS.__contains__, arguments), ""]
    return python == sys.executable and (rest[0] in _WAYS or rest[0].endswith(".py"))


def become(request: dict) -> list[str]:
    """Make of this fork what a new interpreter would be; return its arguments after the flags."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["folder"])
    # Imports have set variables, some to a path in the temp folder.
    here, there = os.environ["TMPDIR"], request["environment"]["TMPDIR"]
    brought = {name: value.replace(here, there) for name, value in os.environ.items() if name not in _AT_START}
    os.environ.clear()  # of the C library, too: nothing points into the memory that is overwritten below
    os.environ.update({**brought, **request["environment"]})
    flags = list(itertools.takewhile(_FLAGS.__contains__, request["command"][1:]))
    sys.dont_write_bytecode |= "-B" in flags
    _open_streams(flags)
    _show(request["command"], request["environment"])
    sys.orig_argv = request["command"]
    arguments = request["command"][1 + len(flags) :]
    if arguments[0] in _WAYS:
        sys.argv = [arguments[0], *arguments[2:]]
        first = request["folder"] if arguments[0] == "-m" else ""
    else:
        sys.argv = arguments
        first = os.path.dirname(os.path.realpath(arguments[0]))
    added = filter(None, os.environ.get("PYTHONPATH", "").split(":"))
    sys.path[:] = [first, *added, *sys.path[1:]]
    sys.path_importer_cache.clear()
    tempfile.tempdir = None
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # as when it is imported; Python's own generator does this after each fork
    if "torch" in sys.modules and (threads := os.environ.get("OMP_NUM_THREADS")):
        sys.modules["torch"].set_num_threads(int(threads))
    return arguments


def _open_streams(flags: list[str]) -> None:
    """Open the standard streams again: those of the server remember whether its own files could be sought in."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old = getattr(sys, name)
        mode, unbuffered = "w" if number else "r", old.write_through or "-u" in flags  # PYTHONUNBUFFERED: the former
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
    ours = [name for name in modules if name.startswith("everyrank.")]
    for name in modules:
        if name not in ours:
            importlib.import_module(name)
    _import_as_plugins(ours)
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
        finalizer.atexit = False  # torch would unregister its operators at the end of each fork
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"{threads} threads: a fork could hang"
    gc.collect()
    gc.freeze()  # no collection in a fork copies these pages


def _import_as_plugins(modules: list[str]) -> None:
    """Import modules as pytest does those of a plugin: with its own loader, which explains what an assert saw."""
    if not modules:
        return
    from _pytest.assertion import install_importhook
    from _pytest.config import get_config

    config = get_config()
    install_importhook(config).mark_rewrite("everyrank")
    for name in modules:
        importlib.import_module(name)
    config._ensure_unconfigure()  # the hook of the run itself comes later


def _go_on(arguments: list[str]) -> None:
    """Go on as ``python -m MODULE``, ``python -c PROGRAM`` or ``python SCRIPT`` does."""
    main, code = vars(sys.modules["__main__"]), None
    try:
        if arguments[0] == "-m":
            runpy._run_module_as_main(arguments[1])  # type: ignore[attr-defined]
        elif arguments[0] == "-c":
            exec(compile(arguments[1], "<string>", "exec"), main)
        else:
            script = os.path.abspath(arguments[0])
            loader = importlib.machinery.SourceFileLoader("__main__", script)
            main.update(__file__=script, __cached__=None, __loader__=loader)
            exec(loader.source_to_code(loader.get_data(script), script), main)
    except SystemExit as error:
        code = error.code
    if code is not None and not isinstance(code, int):
        raise SystemExit(code)  # Python prints it
    _end(code or 0)


def _end(code: int) -> None:
    """Do what an interpreter does at its end, except that it takes no module apart: that copies the pages of a fork.

    With torch it takes 0.27 s of processor time, more than all that pytest does in a run with one test.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)


def _main(control: int, door: int, modules: list[str]) -> None:
    _prepare(modules)
    request = serve(socket.socket(fileno=control), socket.socket(fileno=door))
    if request is None:
        return
    lead(request)
    while (command := fork_waiting(request)) is not None:
        request = command
    _go_on(become(request))


if __name__ == "tests.fork_server":
    _main(int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]))
