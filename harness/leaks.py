"""What a test leaves behind on a rank.

A snapshot names everything that a process holds; a leak is what a later snapshot has in addition.
What a fixture of a wider scope made during its own setup is that fixture's, and no leak of the test.
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

from everyrank import helpers, leaktexts
from everyrank.launch.keeper import children
from everyrank.origins import ORIGINS
from everyrank.record import Leak

Snapshot = dict[tuple[str, str], str]

#: What is not made but changed. Reason enough to end a warm world.
_STATE = {"env", "state", "signal"}

#: What drivers keep open; what torch's faulty RPC agent keeps of its rings after its shutdown (an agent that a test
#: leaves behind is told of by itself); and what a tensor keeps, as long as it lives, once it went to another process.
_NOBODYS_FILES = ("/dev/nvidia", "/proc/", "/memfd:tensorpipe", "/dev/shm/torch_")

#: libuv, which RPC agents run on, opens these with its first loop and keeps them as long as the process lives.
_OF_AN_AGENT = ("pipe:", "anon_inode:[event")

#: What a process group or an RPC agent holds: as long as one is there it is told of, and not of each of these.
_HELD = ("socket:", "pipe:", "anon_inode:", "/dev/null", "/dev/infiniband")
_HOLDERS = {"process-group", "rpc-agent"}

#: No leak, and yet the end of a warm world.
_AGENT_HAS_RUN = ("state", "whether an RPC agent has run")

#: Variables that libraries set for themselves, once, when they are first used.
_LIBRARIES_VARIABLES = ("TORCHINDUCTOR_", "TRITON_", "KMP_")

#: How a library that is imported in a test finds what is looked at here.
_AT_FIRST = {
    "default dtype": "torch.float32",
    "grad mode": "True",
    "intra-op threads": "1",  # since ranks have OMP_NUM_THREADS=1
    "deterministic algorithms": "False",
    "default device": "cpu",
    "precision of float32 products": "highest",
}

#: Of so many sockets, or groups, each is told by itself.
_FEW = 4

_SETTLE = 0.1  # a thread or a child that is on its way out gets this long
_BUSY_SETTLE = 2.0  # or this long, while it has something to do: on a busy machine ways are long


def snapshot() -> Snapshot:
    """Everything that this process holds, by kind and key."""
    now: Snapshot = {}
    for pid in _children():
        now["process", str(pid)] = _command(pid)
    nobodys = helpers.threads() | {threading.main_thread()}
    for thread in threading.enumerate():
        # What threading calls a dummy is a thread of C++ that ran Python once, and stays listed when it has ended.
        if thread not in nobodys and not isinstance(thread, threading._DummyThread):
            now["thread", str(thread.ident)] = thread.name
    spoken_by = helpers.descriptors()
    for fd in names("/proc/self/fd"):
        if fd in spoken_by:
            continue
        try:
            status = os.fstat(int(fd))
            target = _target(fd, status.st_dev, status.st_ino)
        except OSError:
            continue
        if not target.startswith(_NOBODYS_FILES):
            now["fd", fd] = target
    for name in names("/dev/shm"):
        now["shm", name] = name
    for name, value in _environment():
        now["env", name] = value
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGALRM,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGCHLD,
    ):
        now["signal", number.name] = str(signal.getsignal(number))
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
    if torch.cuda.is_initialized():
        for number in range(torch.cuda.device_count()):
            now["gpu-memory", f"cuda:{number}"] = str(torch.cuda.memory_allocated(number))
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is not None:
        for group, name in dict(c10d._world.pg_names).items():
            now["process-group", str(name)] = f"{type(group).__name__} {name!r} of {group.size()} ranks"
    # torch's RRef context is not usable again after a shutdown: a second agent of the same process never deletes
    # its references, and a graceful end of it waits for ever. Where an agent has run, a world is not kept.
    if _agent_has_run():
        now[_AGENT_HAS_RUN] = "yes"
    api = sys.modules.get("torch.distributed.rpc.api")
    if api is not None and api._is_current_rpc_agent_set():
        now["rpc-agent", "agent"] = str(api._get_current_rpc_agent().get_worker_info())


def lasting(before: Snapshot) -> Snapshot:
    """What is new or changed since; but for shared memory of other processes, and what a note of pytest's is."""
    left = difference(before, snapshot())
    for key in [key for key in left if key[0] == "shm" and not _maps_shared_memory(key[1])]:
        del left[key]
    left.pop(("env", "PYTEST_CURRENT_TEST"), None)
    return left


def difference(before: Snapshot, after: Snapshot) -> Snapshot:
    """What is new or changed; and state that went away, such as an environment variable."""
    new = {key: value for key, value in after.items() if before.get(key) != value and not _shrank(key, before, value)}
    for key, value in before.items():
        if key[0] in _STATE and key not in after:
            new[key] = f"(gone; was {value})"
    return new


def _shrank(key: tuple[str, str], before: Snapshot, value: str) -> bool:
    return key[0] == "gpu-memory" and int(value) <= int(before.get(key, "0"))


class Watch:
    """Watches one test on one rank. What is left in one of the ``swept`` folders is removed by others."""

    def __init__(self, swept: tuple[str, ...] = ()) -> None:
        self._swept = tuple(folder.rstrip(os.sep) + os.sep for folder in swept)
        self._allowed: set[str] = set()  # temporary files of wider fixtures
        ORIGINS.listen()
        self._before = snapshot()

    @contextlib.contextmanager
    def allowing(self) -> Iterator[None]:
        """What is made in here is not the test's: a wider fixture's setup, a group that is kept."""
        before, files = snapshot(), set(ORIGINS.temporary)
        try:
            yield
        finally:
            self._allowed |= set(ORIGINS.temporary) - files
            made = difference(before, snapshot())
            for key, value in made.items():
                if value.startswith("(gone;"):
                    self._before.pop(key, None)
                else:
                    self._before[key] = value

    def leaks(self) -> tuple[list[Leak], list[str]]:
        """The leaks, and what else of the test keeps this process from serving another."""
        left = self._left()
        files = self._files()
        if files or any(kind not in _STATE for kind, _ in left):
            gc.collect()
            left, files = self._settled(), self._files()
        ORIGINS.listening = False
        untold = {key for key, value in left.items() if key == _AGENT_HAS_RUN or _is_of_a_debugger(key, value)}
        told = {key: value for key, value in left.items() if key not in untold}
        if any(kind in _HOLDERS for kind, _ in told):
            told = {key: value for key, value in told.items() if not _is_held(key, value)}
        counts = Counter("socket" if value.startswith("socket:") else kind for (kind, _), value in told.items())
        many = {kind for kind, count in counts.items() if count > _FEW}
        leaks = [leaktexts.leak(key, value, self._before.get(key), many) for key, value in sorted(told.items())]
        leaks += [leaktexts.file_leak(path) for path in files if path not in left.values()]
        return leaks, ["ran an RPC agent" if key == _AGENT_HAS_RUN else "was debugged" for key in sorted(untold)]

    def _settled(self) -> Snapshot:
        """What is left when whatever is on its way out is gone."""
        began = time.monotonic()
        used: dict[str, tuple[int, bool]] = {}
        while True:
            left = self._left()
            runs = [key for key in left if key[0] in ("thread", "process")]
            if not runs or time.monotonic() - began > _BUSY_SETTLE:
                return left
            tasks = [_task(key) for key in runs]
            before, used = used, {task: _processor_time(task) for task in tasks}
            # One that has ended since it was seen has no task any more: the next look is without it.
            idle = all(task and before.get(task) == (ticks, False) for task, (ticks, _) in used.items())
            if idle and time.monotonic() - began > _SETTLE:
                return left
            time.sleep(0.005)

    def _files(self) -> list[str]:
        """What tempfile made for the test and is still there."""
        made = [path for path in ORIGINS.temporary if path not in self._allowed and not path.startswith(self._swept)]
        return [path for path in made if os.path.lexists(path)]

    def _left(self) -> Snapshot:
        left = lasting(self._before)
        foreign: list[tuple[str, str]] = []
        if _agent_has_run():
            foreign += [
                key for key, target in left.items() if target.startswith(_OF_AN_AGENT) and _is_held(key, target)
            ]
        foreign += [key for key, value in left.items() if key[0] == "signal" and helpers.is_handler(value)]
        foreign += [key for key in left if key[0] == "env" and _is_nobodys(key[1])]
        foreign += [key for key, value in left.items() if key not in self._before and is_librarys_own(key, value)]
        for key in foreign:
            del left[key]
        return left


def _is_nobodys(variable: str) -> bool:
    """Whether no test is to blame for a change of the environment: the next test simply starts from it.

    Whoever imports a library first would make it, and there is no way back.
    """
    setter = ORIGINS.setter(variable)
    return setter == "import" or (setter != "user" and variable.startswith(_LIBRARIES_VARIABLES))


def is_librarys_own(key: tuple[str, str], value: str) -> bool:
    """Whether there was nothing to look at before the test, since nobody had imported torch or numpy."""
    kind, name = key
    return kind == "state" and (name.startswith("generator of ") or _AT_FIRST.get(name) == value)


def _is_of_a_debugger(key: tuple[str, str], value: str) -> bool:
    """Whether a person has debugged this rank."""
    return key == ("signal", "SIGINT") and "Pdb.sigint_handler" in value


def _is_held(key: tuple[str, str], value: str) -> bool:
    """Whether it is what C++ opens for a group or an agent."""
    if key[0] == "shm":
        return value.startswith("nccl-")
    return key[0] == "fd" and value.startswith(_HELD) and not ORIGINS.is_pythons(int(key[1]), value)


def _task(key: tuple[str, str]) -> str:
    """Where the kernel tells what a thread or a process is doing; nowhere for a thread that has ended."""
    kind, name = key
    if kind == "process":
        return f"/proc/{name}/stat"
    ids = {str(thread.ident): thread.native_id for thread in threading.enumerate()} if kind == "thread" else {}
    return f"/proc/self/task/{ids[name]}/stat" if name in ids else ""


def _processor_time(task: str) -> tuple[int, bool]:
    """What it has used, in ticks, and whether it wants more just now."""
    with contextlib.suppress(OSError), open(task) as file:
        fields = file.read().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12]), fields[0] in "RD"
    return 0, False


def swept(config: Any, run: str) -> tuple[str, ...]:
    """Folders that are removed after the test, whatever it leaves in them."""
    factory = getattr(config, "_tmp_path_factory", None)
    return (run, str(factory.getbasetemp())) if factory is not None else (run,)


@functools.lru_cache(maxsize=4096)
def _target(fd: str, device: int, inode: int) -> str:
    """What a file descriptor is open on. Looked up once for each file: reading 30 links costs more than the rest."""
    return os.readlink(f"/proc/self/fd/{fd}")


def _maps_shared_memory(name: str) -> bool:
    """Whether a file in /dev/shm is ours: named after this process, or mapped by it, under whatever name."""
    if f"_{os.getpid()}_" in name:
        return True
    with contextlib.suppress(OSError), open("/proc/self/maps") as maps:
        inode = str(os.stat(f"/dev/shm/{name}").st_ino)
        return any("/dev/shm/" in line and line.split()[4] == inode for line in maps)
    return False


def _environment() -> Iterator[tuple[str, str]]:
    """``os.environ.items()``, which encodes and decodes every name, four times a test on every rank."""
    raw: Any = getattr(os.environ, "_data", os.environ)
    return ((_text(name), _text(value)) for name, value in raw.items())


_text = functools.lru_cache(maxsize=4096)(os.fsdecode)


def _agent_has_run() -> bool:
    return bool(getattr(sys.modules.get("torch.distributed.rpc.api"), "_ALL_WORKER_NAMES", ()))


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "(gone)"


def names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _children() -> list[int]:
    """The child processes that somebody started: not Python's own helpers, but what its fork server forked."""
    ours, helping = children(), helpers.processes()
    server = helpers.fork_server()
    forked = children(server) if server is not None and server in ours else []
    return [pid for pid in [*ours, *forked] if pid not in helping]


def _command(pid: int) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        words = file.read().replace(b"\0", b" ").decode("utf-8", "replace").strip()
        return f"pid {pid}: {words[:200]}"
    return f"pid {pid}"
