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
from collections.abc import Iterator
from typing import Any

from everyrank import leaktexts
from everyrank.launch.keeper import children
from everyrank.origins import ORIGINS
from everyrank.record import Leak

Snapshot = dict[tuple[str, str], str]

#: What is not made but changed. Reason enough to end a warm world.
_STATE = {"env", "state", "signal"}

#: What drivers keep open; and what torch's faulty RPC agent keeps of its rings after its shutdown. An agent that a
#: test leaves behind is told of by itself.
_NOBODYS_FILES = ("/dev/nvidia", "/proc/", "/memfd:tensorpipe")

#: libuv, which RPC agents run on, opens these with its first loop and keeps them as long as the process lives.
_OF_AN_AGENT = ("pipe:", "anon_inode:[event")

#: Changes that are nobody's fault: libraries make them once, when they are first used.
_UNTOLD = {("state", "whether an RPC agent has run")}
_LIBRARIES_VARIABLES = ("TORCHINDUCTOR_", "TRITON_", "KMP_")

#: Of so many sockets each is told by itself.
_FEW = 4

_SETTLE = 0.1  # a thread or a child that is on its way out gets this long


def snapshot() -> Snapshot:
    """Everything that this process holds, by kind and key."""
    now: Snapshot = {}
    for pid in children():
        if pid != _resource_tracker():
            now["process", str(pid)] = _command(pid)
    for thread in threading.enumerate():
        # What threading calls a dummy is a thread of C++ that ran Python once, and stays listed when it has ended.
        if thread is not threading.main_thread() and not isinstance(thread, threading._DummyThread):
            now["thread", str(thread.ident)] = thread.name
    for fd in _names("/proc/self/fd"):
        try:
            status = os.fstat(int(fd))
            target = _target(fd, status.st_dev, status.st_ino)
        except OSError:
            continue
        if not target.startswith(_NOBODYS_FILES):
            now["fd", fd] = target
    for name in _names("/dev/shm"):
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
        for group, names in dict(c10d._world.pg_names).items():
            now["process-group", str(names)] = f"{type(group).__name__} {names!r} of {group.size()} ranks"
    # torch's RRef context is not usable again after a shutdown: a second agent of the same process never deletes
    # its references, and a graceful end of it waits for ever. Where an agent has run, a world is not kept.
    now["state", "whether an RPC agent has run"] = str(_agent_has_run())
    api = sys.modules.get("torch.distributed.rpc.api")
    if api is not None and api._is_current_rpc_agent_set():
        now["rpc-agent", "agent"] = str(api._get_current_rpc_agent().get_worker_info())


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
        """The leaks, and in what other ways the process is no longer as it was."""
        left = self._left()
        files = self._files()
        if files or any(kind not in _STATE for kind, _ in left):
            gc.collect()
            until = time.monotonic() + _SETTLE
            left, files = self._left(), self._files()
            while time.monotonic() < until and any(kind in ("thread", "process") for kind, _ in left):
                time.sleep(0.005)
                left = self._left()
        ORIGINS.listening = False
        told = {key: value for key, value in left.items() if not _is_librarys(key, value)}
        brief = sum(value.startswith("socket:") for value in told.values()) > _FEW
        leaks = [leaktexts.leak(key, value, self._before.get(key), brief) for key, value in sorted(told.items())]
        leaks += [leaktexts.file_leak(path) for path in files if path not in left.values()]
        changed = [f"{kind} {key} changed" for kind, key in sorted(left) if kind in _STATE]
        return leaks, changed

    def _files(self) -> list[str]:
        """What tempfile made for the test and is still there."""
        made = [path for path in ORIGINS.temporary if path not in self._allowed and not path.startswith(self._swept)]
        return [path for path in made if os.path.lexists(path)]

    def _left(self) -> Snapshot:
        left = difference(self._before, snapshot())
        foreign = [key for key in left if key[0] == "shm" and not _maps_shared_memory(key[1])]
        if _agent_has_run():
            foreign += [key for key, target in left.items() if key[0] == "fd" and target.startswith(_OF_AN_AGENT)]
        for key in foreign:
            del left[key]
        left.pop(("env", "PYTEST_CURRENT_TEST"), None)
        return left


def _is_librarys(key: tuple[str, str], value: str) -> bool:
    if key == ("signal", "SIGINT") and "Pdb.sigint_handler" in value:
        return True  # a person has debugged this rank
    return key in _UNTOLD or (key[0] == "env" and key[1].startswith(_LIBRARIES_VARIABLES))


def swept(config: Any, run: str) -> tuple[str, ...]:
    """Folders that are removed after the test, whatever it leaves in them."""
    factory = getattr(config, "_tmp_path_factory", None)
    return (run, str(factory.getbasetemp())) if factory is not None else (run,)


@functools.lru_cache(maxsize=4096)
def _target(fd: str, device: int, inode: int) -> str:
    """What a file descriptor is open on. Looked up once for each file: reading 30 links costs more than the rest."""
    return os.readlink(f"/proc/self/fd/{fd}")


def _maps_shared_memory(name: str) -> bool:
    """Whether a file in /dev/shm is ours: named after this process, or mapped by it."""
    if f"_{os.getpid()}_" in name:
        return True
    with contextlib.suppress(OSError), open("/proc/self/maps") as maps:
        return f"/dev/shm/{name}\n" in maps.read()
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


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _resource_tracker() -> int | None:
    """Python's own helper process, which lives as long as the interpreter."""
    module = sys.modules.get("multiprocessing.resource_tracker")
    return getattr(getattr(module, "_resource_tracker", None), "_pid", None)


def _command(pid: int) -> str:
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
        words = file.read().replace(b"\0", b" ").decode("utf-8", "replace").strip()
        return f"pid {pid}: {words[:200]}"
    return f"pid {pid}"
