"""Finds what a test leaves behind on a rank.

A snapshot names everything that a process holds; a leak is what a later snapshot has in addition.
Things that a fixture of a wider scope made during its own setup belong to that fixture and are no leaks of the test.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from everyrank import proc_stat
from everyrank.devices import device_types
from everyrank.leaks import describe, libraries
from everyrank.leaks.child_processes import children
from everyrank.leaks.origins import ORIGINS
from everyrank.model.counts import count
from everyrank.patience import CoreWaits, Patience
from everyrank.wire.messages import Leak

Snapshot = dict[tuple[str, str], str]

_SIGNALS = {
    number.name: number
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGALRM,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGCHLD,
    )
}

#: Kinds of things that a test changes instead of making. A change ends a warm world.
_STATE = {"env", "state", "signal"}

#: Files that are no leaks, besides those that drivers of devices open: the rings that torch's faulty RPC agent keeps
#: after its shutdown (an agent that a test leaves behind is reported as such); and the shared memory of a tensor that
#: was sent to another process, open as long as the tensor lives.
_IGNORED_FILES = ("/proc/", "/memfd:tensorpipe", "/dev/shm/torch_")

#: libuv, which RPC agents use, opens these with its first loop and keeps them as long as the process lives.
_OPENED_BY_LIBUV = ("pipe:", "anon_inode:[event")

#: Files that a process group or an RPC agent holds. If one is left, it is reported and these files are not.
_HELD = ("socket:", "pipe:", "anon_inode:", "/dev/null", "/dev/infiniband")
_HOLDERS = {"process-group", "rpc-agent"}

#: No leak, but a world in which an agent has run is not kept.
_AGENT_HAS_RUN = ("state", "whether an RPC agent has run")

#: Prefixes of variables that libraries set for themselves when they are first used.
_LIBRARY_VARIABLES = ("TORCHINDUCTOR_", "TRITON_", "KMP_")

#: The initial values of the state of torch, for a test that imports it first.
_INITIAL_STATE = {
    "default dtype": "torch.float32",
    "grad mode": "True",
    "intra-op threads": "1",  # since ranks have OMP_NUM_THREADS=1
    "deterministic algorithms": "False",
    "default device": "cpu",
    "precision of float32 products": "highest",
}

#: Up to this many sockets, or groups, are listed one by one.
_FEW = 4

_SETTLE = 0.1  # seconds that a thread or a child gets to end
_BUSY_SETTLE = 2.0  # seconds if it is working: on a busy host its end takes longer


def snapshot() -> Snapshot:
    """Return everything that this process holds, by kind and name."""
    now: Snapshot = {}
    for pid in _children():
        now["process", str(pid)] = _command(pid)
    ignored = libraries.threads() | {threading.main_thread()}
    for thread in threading.enumerate():
        # A dummy thread of threading is a C++ thread that ran Python once; it stays listed after its end.
        if thread not in ignored and not isinstance(thread, threading._DummyThread):
            now["thread", str(thread.ident)] = thread.name
    of_helpers, ignored_files = libraries.descriptors(), (*_IGNORED_FILES, *device_types.files())
    for fd in names("/proc/self/fd"):
        if fd in of_helpers:
            continue
        try:
            status = os.fstat(int(fd))
            target = _target(fd, status.st_dev, status.st_ino)
        except OSError:
            continue
        if not target.startswith(ignored_files):
            now["fd", fd] = target
    for name in names("/dev/shm"):
        now["shm", name] = name
    now.update(_environment())
    for name, number in _SIGNALS.items():
        now["signal", name] = str(signal.getsignal(number))
    now["state", "working directory"] = _working_directory()
    now["state", "generator of random"] = str(id(getattr(random.random, "__self__", random.random)))
    draws: Any = getattr(sys.modules.get("numpy.random"), "get_bit_generator", None)
    if draws is not None:
        now["state", "generator of numpy"] = str(id(draws()))
    if "torch" in sys.modules:
        _add_torch(now)
    return now


def _add_torch(now: Snapshot) -> None:
    torch: Any = sys.modules["torch"]
    now["state", "default dtype"] = str(torch.get_default_dtype())
    now["state", "grad mode"] = str(torch.is_grad_enabled())
    now["state", "intra-op threads"] = str(torch.get_num_threads())
    now["state", "deterministic algorithms"] = str(torch.are_deterministic_algorithms_enabled())
    now["state", "default device"] = str(torch.get_default_device())
    now["state", "precision of float32 products"] = torch.get_float32_matmul_precision()
    now["state", "generator of torch"] = str(id(torch.default_generator))
    for kind in device_types.known():
        now.update({("gpu-memory", device): str(held) for device, held in kind.memory().items()})
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is not None:
        for group, name in dict(c10d._world.pg_names).items():
            now["process-group", str(name)] = f"{type(group).__name__} {name!r} of {count(group.size(), 'rank')}"
    # torch's RRef context cannot be used again after a shutdown: a second agent of the same process never deletes
    # its references, and its graceful end waits for ever. So a world in which an agent has run is not kept.
    if _agent_has_run():
        now[_AGENT_HAS_RUN] = "yes"
    api = sys.modules.get("torch.distributed.rpc.api")
    if api is not None and api._is_current_rpc_agent_set():
        now["rpc-agent", "agent"] = str(api._get_current_rpc_agent().get_worker_info())


def lasting(before: Snapshot) -> Snapshot:
    """Return what is new or changed, except other processes' shared memory and pytest's own variable."""
    new = difference(before, snapshot())
    for key in [key for key in new if key[0] == "shm" and not _maps_shared_memory(key[1])]:
        del new[key]
    new.pop(("env", "PYTEST_CURRENT_TEST"), None)
    return new


def difference(before: Snapshot, after: Snapshot) -> Snapshot:
    """Return what is new or changed, and state that is gone, such as a removed environment variable."""
    new = {key: value for key, value in after.items() if before.get(key) != value and not _shrank(key, before, value)}
    for key, value in before.items():
        if key[0] in _STATE and key not in after:
            new[key] = f"(gone; was {value})"
    return new


def _shrank(key: tuple[str, str], before: Snapshot, value: str) -> bool:
    return key[0] == "gpu-memory" and int(value) <= int(before.get(key, "0"))


class LeakWatch:
    """Watches one test on one rank. Files left in one of the ``swept`` folders are removed elsewhere."""

    def __init__(self, swept: tuple[str, ...] = ()) -> None:
        self._swept = tuple(folder.rstrip(os.sep) + os.sep for folder in swept)
        self._allowed: set[str] = set()  # temporary files of wider fixtures
        ORIGINS.listen()
        self._before = snapshot()

    @contextlib.contextmanager
    def allowing(self) -> Iterator[None]:
        """Ignore what is made in this context: by a wider fixture's setup, or for a group that is kept."""
        before, files = snapshot(), set(ORIGINS.temporary)
        try:
            yield
        finally:
            self._allowed |= set(ORIGINS.temporary) - files
            for key, value in difference(before, snapshot()).items():
                if value.startswith("(gone;"):
                    self._before.pop(key, None)
                else:
                    self._before[key] = value

    def leaks(self) -> tuple[list[Leak], list[str]]:
        """Return the leaks, and further reasons why this process cannot serve another test."""
        remains = self._remains()
        files = self._files()
        if files or any(kind not in _STATE for kind, _ in remains):
            gc.collect()
            remains, files = self._settled(), self._files()
        ORIGINS.listening = False
        no_leaks = {key for key, value in remains.items() if key == _AGENT_HAS_RUN or _is_of_a_debugger(key, value)}
        leaked = {key: value for key, value in remains.items() if key not in no_leaks}
        if any(kind in _HOLDERS for kind, _ in leaked):
            leaked = {key: value for key, value in leaked.items() if not _is_held(key, value)}
        counts = Counter("socket" if value.startswith("socket:") else kind for (kind, _), value in leaked.items())
        many = {kind for kind, count in counts.items() if count > _FEW}
        leaks = [describe.as_leak(key, value, self._before.get(key), many) for key, value in sorted(leaked.items())]
        leaks += [describe.file_leak(path) for path in files if path not in remains.values()]
        return leaks, ["ran an RPC agent" if key == _AGENT_HAS_RUN else "was debugged" for key in sorted(no_leaks)]

    def _settled(self) -> Snapshot:
        """Wait for threads and processes that are about to end; return what is left."""
        began, patience = time.monotonic(), Patience(_BUSY_SETTLE, CoreWaits([os.getpid()]))
        used: dict[str, tuple[int, bool]] = {}
        while True:
            remains = self._remains()
            runs = [key for key in remains if key[0] in ("thread", "process")]
            if not runs or not patience.turn():
                return remains
            tasks = [_task(key) for key in runs]
            before, used = used, {task: _processor_time(task) for task in tasks}
            # A thread that has ended since the snapshot has no task any more: the next snapshot is without it.
            idle = all(task and before.get(task) == (ticks, False) for task, (ticks, _) in used.items())
            if idle and time.monotonic() - began > _SETTLE:
                return remains
            time.sleep(0.005)

    def _files(self) -> list[str]:
        """Return the files that tempfile made for the test and that still exist."""
        paths = [path for path in ORIGINS.temporary if path not in self._allowed and not path.startswith(self._swept)]
        return [path for path in paths if os.path.lexists(path)]

    def _remains(self) -> Snapshot:
        remains = lasting(self._before)
        foreign: list[tuple[str, str]] = []
        held = {key[1]: value for key, value in remains.items() if key[0] == "fd" and _is_held(key, value)}
        by_agent = (
            {fd for fd, value in held.items() if value.startswith(_OPENED_BY_LIBUV)} if _agent_has_run() else set()
        )
        foreign += [("fd", fd) for fd in by_agent or libraries.lock_of_signals(held)]
        foreign += [key for key, value in remains.items() if key[0] == "signal" and libraries.is_handler(value)]
        foreign += [key for key in remains if key[0] == "env" and _is_set_by_library(key[1])]
        foreign += [key for key, value in remains.items() if key not in self._before and is_initial_state(key, value)]
        for key in foreign:
            del remains[key]
        return remains


def _is_set_by_library(variable: str) -> bool:
    """Return whether a library set this variable, so that no test is to blame: the next test starts from its value.

    The first import or use of the library sets it in any test, and a library is never unloaded.
    """
    setter = ORIGINS.setter(variable)
    return setter == "import" or (setter != "user" and variable.startswith(_LIBRARY_VARIABLES))


def is_initial_state(key: tuple[str, str], value: str) -> bool:
    """Return whether this is the initial state of torch or numpy, which the test imported first."""
    kind, name = key
    return kind == "state" and (name.startswith("generator of ") or _INITIAL_STATE.get(name) == value)


def _is_of_a_debugger(key: tuple[str, str], value: str) -> bool:
    """Return whether this is the signal handler of a debugger that a user opened."""
    return key == ("signal", "SIGINT") and "Pdb.sigint_handler" in value


def _is_held(key: tuple[str, str], value: str) -> bool:
    """Return whether C++ code opened this for a group or an agent."""
    if key[0] == "shm":
        return value.startswith("nccl-")
    return key[0] == "fd" and value.startswith(_HELD) and not ORIGINS.is_pythons(int(key[1]), value)


def _task(key: tuple[str, str]) -> str:
    """Return the path of the kernel's counters of a thread or a process; empty if the thread has ended."""
    kind, name = key
    if kind == "process":
        return f"/proc/{name}/stat"
    ids = {str(thread.ident): thread.native_id for thread in threading.enumerate()} if kind == "thread" else {}
    return f"/proc/self/task/{ids[name]}/stat" if name in ids else ""


def _processor_time(task: str) -> tuple[int, bool]:
    """Return the processor time used, in ticks, and whether the task runs or waits for a disk now."""
    with contextlib.suppress(OSError):
        stat = proc_stat.read(task)
        return stat.ticks, stat.is_busy
    return 0, False


def swept_folders(config: Any, run: str) -> tuple[str, ...]:
    """Return the folders that are removed after the test or the run, with all files in them."""
    factory = getattr(config, "_tmp_path_factory", None)
    return (run, str(factory.getbasetemp())) if factory is not None else (run,)


@functools.lru_cache(maxsize=4096)
def _target(fd: str, device: int, inode: int) -> str:
    """Return what a file descriptor is open on. The cache saves reading 30 links, which costs more than the rest."""
    return os.readlink(f"/proc/self/fd/{fd}")


def _maps_shared_memory(name: str) -> bool:
    """Return whether a file in /dev/shm is named after this process or mapped by it."""
    if f"_{os.getpid()}_" in name:
        return True
    with contextlib.suppress(OSError), open("/proc/self/maps") as maps:
        inode = str(os.stat(f"/dev/shm/{name}").st_ino)
        return any("/dev/shm/" in line and line.split()[4] == inode for line in maps)
    return False


def _environment() -> Snapshot:
    """Return the environment. It is read as a whole, and only converted again if it has changed."""
    global _known
    raw: Any = getattr(os.environ, "_data", os.environ)
    if raw != _known[0]:
        _known = dict(raw), {("env", _text(name)): _text(value) for name, value in raw.items()}
    return _known[1]


_text = functools.lru_cache(maxsize=4096)(os.fsdecode)
_known: tuple[dict[Any, Any], Snapshot] = {}, {}


def _agent_has_run() -> bool:
    return bool(getattr(sys.modules.get("torch.distributed.rpc.api"), "_ALL_WORKER_NAMES", ()))


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "(gone)"


def names(folder: str) -> list[str]:
    """Return the names in a folder; none if the folder cannot be read."""
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _children() -> list[int]:
    """Return the child processes, with those of Python's fork server and without Python's own helpers."""
    own, of_helpers = children(), libraries.processes()
    server = libraries.fork_server()
    forked = children(server) if server is not None and server in own else []
    return [pid for pid in [*own, *forked] if pid not in of_helpers]


def _command(pid: int) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        command = file.read().replace(b"\0", b" ").decode("utf-8", "replace").strip()
        return f"pid {pid}: {command[:200]}"
    return f"pid {pid}"
