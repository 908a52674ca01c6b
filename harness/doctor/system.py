"""Look at what the system allows: cores, processes, files, memory that is shared, sockets, folders, stacks."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from everyrank.doctor.answer import BAD, NOTE, OK, Answer
from everyrank.errors import MisuseError
from everyrank.launch import native
from everyrank.launch.limits import advice
from everyrank.model.counts import count
from everyrank.resources import leases

#: What a world takes of a process' limits, seen with gloo at 2 to 48 ranks: descriptors of the controller for each
#: rank, and threads of a rank (each counts as a process). A run has some of its own.
_FILES, _THREADS, _OWN = 5, 6, 60
#: Fewer ranks than this at a time are worth a note.
_FEW = 16
_MB = 1 << 20


def cores() -> Answer:
    at_a_time = count(leases.capacity(), "rank")
    return Answer("cores", OK, f"{leases.cores()}: up to {at_a_time} at a time, all workers together")


def files() -> Answer:
    """How large a world may be before the controller has no descriptor left."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = (soft - _OWN) // _FILES
    if soft == resource.RLIM_INFINITY or most >= 128:
        return Answer("files", OK, f"this process may open {_number(soft)}")
    text = f"this process may open {soft}: enough for worlds of up to {count(max(most, 0), 'rank')}"
    if most >= _FEW:
        return Answer("files", OK, text)
    return Answer(
        "files", BAD, text, "ulimit -n 4096" if hard >= 4096 else "docker run --ulimit nofile=4096, or as root"
    )


def processes() -> Answer:
    """How many processes and threads this user and this container may still start."""
    left = _left_of_user(), _left_of_container()
    known = [number for number in left if number is not None]
    if not known:
        return Answer("processes", OK, "no limit")
    most = (min(known) - _OWN) // _THREADS
    text = f"this {'user' if left[0] == min(known) else 'container'} may start {min(known)} more, threads counted"
    if most >= _FEW:
        return Answer("processes", OK, text)
    return Answer("processes", BAD, text, "raise ulimit -u, or the container's limit of pids")


def _left_of_user() -> int | None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft == resource.RLIM_INFINITY or os.geteuid() == 0:  # root has no such limit
        return None
    mine = 0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if folder.stat().st_uid == os.getuid():
                mine += len(os.listdir(folder / "task"))
    return soft - mine


def _left_of_container(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    for folder in (root, root / "pids"):
        with contextlib.suppress(OSError, ValueError):
            return int((folder / "pids.max").read_text()) - int((folder / "pids.current").read_text())
    return None


def shared_memory() -> Answer:
    name, folder = "shared memory", "/dev/shm"
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Answer(name, NOTE, f"{folder}: {error.strerror}: tensors cannot go to workers of a DataLoader")
    text = f"{free // _MB} MB free in {folder}"
    if free >= 64 * _MB:
        return Answer(name, OK, text)
    return Answer(name, NOTE, f"{text}: workers of a DataLoader may die of SIGBUS", "docker run --shm-size=1g")


def loopback() -> Answer:
    """Whether two processes of this machine can talk over 127.0.0.1, and gloo finds the interface."""
    interface = "lo" if sys.platform == "linux" else "lo0"
    try:
        with socket.create_server(("127.0.0.1", 0)) as door:
            door.settimeout(5)
            with socket.create_connection(door.getsockname(), timeout=5), door.accept()[0]:
                pass
    except OSError as error:
        return Answer("loopback", BAD, f"no connection to 127.0.0.1: {advice(error)}", f"ip link set {interface} up")
    if interface not in (name for _, name in socket.if_nameindex()):
        text = f"there is no interface {interface!r}, which ranks on one machine use"
        return Answer("loopback", BAD, text, "name one in GLOO_SOCKET_IFNAME and TP_SOCKET_IFNAME")
    return Answer("loopback", OK, f"ranks on this machine talk over 127.0.0.1 ({interface})")


def folders() -> Iterator[Answer]:
    """The temp folder, where a run keeps its files, and the folder of leases, where runs see each other."""
    try:
        with tempfile.TemporaryDirectory(prefix="everyrank-") as scratch:
            free = shutil.disk_usage(scratch).free // _MB
        if free < 100:
            yield Answer("temp folder", NOTE, f"{free} MB free in {tempfile.gettempdir()}", "set TMPDIR to another")
        else:
            yield Answer("temp folder", OK, tempfile.gettempdir())
    except OSError as error:
        yield Answer("temp folder", BAD, f"nothing can be written: {error}", "set TMPDIR to a folder of yours")
    folder = leases.folder()
    try:
        leases.prepare(folder)
        leases.tidy(folder, ())
        yield Answer("leases", OK, str(folder))
    except (MisuseError, OSError) as error:
        yield Answer("leases", BAD, str(error), "name a folder of yours in EVERYRANK_LEASES")


def stacks() -> Answer:
    """Whether a roll call can show what a rank does inside of C. pystack reads a process that is not its child."""
    name = "C stacks"
    if not native.reader_path():
        return Answer(name, NOTE, "a roll call shows no C frames without pystack", "pip install pystack")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as waiting:
        frames = native.read({0: waiting.pid}, within=20).get(0, ())
        waiting.communicate(b"\n")
    if frames and not frames[0].startswith("(not known"):
        return Answer(name, OK, "pystack reads them")
    text = " ".join(frames) or "pystack found none"
    return Answer(
        name, NOTE, f"pystack cannot read them: {text}", "docker run --cap-add=SYS_PTRACE, or ptrace_scope 0"
    )


#: Each look, in the order in which they are printed.
LOOKS: tuple[Callable[[], Answer | Iterator[Answer]], ...] = (
    cores,
    files,
    processes,
    shared_memory,
    loopback,
    folders,
    stacks,
)


def _number(limit: int) -> str:
    return "any number of files" if limit == resource.RLIM_INFINITY else f"{limit} files"
