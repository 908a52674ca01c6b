"""Start a script at one size, as torchrun would, and wait for its ranks: processes with their output in files."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from everyrank.leaks.libraries import remove_all
from everyrank.parity.script import asked
from everyrank.scripts.agent import status_of
from everyrank.scripts.folder import PYTEST, VARIABLE, Status, process_name, runs
from everyrank.scripts.verdict import Seen, fates, text
from everyrank.wire.messages import WitnessStatement
from everyrank.wire.witness_pipe import ask, path

#: A compiled graph has kernels and casts that no mode sees.
_UNCOMPILED = {"TORCH_COMPILE_DISABLE": 1, "PYTORCH_JIT": 0}
#: Ranks that have kept enough wait for the others this long, in seconds, if nothing else is known of these.
_LATE = 60.0
#: A rank that is asked what it does answers within this many seconds, if it can.
_ANSWERS = 3.0


@dataclass(frozen=True)
class Host:
    """The ranks that one host has, and the address at which all ranks meet."""

    ranks: range
    port: int
    address: str = "127.0.0.1"
    number: int = 0
    hosts: int = 1
    working_folder: str | None = None
    """Where the script starts, if this process runs elsewhere."""


@dataclass
class Size:
    """The run of a script at one size: all of its ranks, or those of one host."""

    ranks: int
    folder: Path
    script: str
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    statuses: dict[int, int] = field(default_factory=dict)
    """How ranks have ended on their own, as exit codes of `subprocess`."""
    done: set[int] = field(default_factory=set)
    """The ranks that have kept enough."""
    trouble: str = ""
    """The verdict on ranks that have not ended well."""
    late: bool = False
    """Whether it was ended at the time limit."""
    done_at: float = 0.0
    options: Sequence[str] = ()

    def output(self, rank: int) -> str:
        with contextlib.suppress(OSError):
            return (self.folder / f"rank-{rank}.log").read_text(errors="replace")
        return ""

    @property
    def in_double(self) -> bool:
        return "fp64" in self.options

    def is_over(self) -> bool:
        return bool(self.trouble) or self.late or len(self.done) + len(self.statuses) >= len(self.processes)

    # --- its life ---------------------------------------------------------------------------------

    def start(self, command: Sequence[str], steps: int, options: Sequence[str], host: Host) -> None:
        """Start the ranks of a host."""
        self.options = options
        shared = self._environment(host)
        for rank in host.ranks:
            kept = self.folder / f"rank-{rank}"
            kept.mkdir(parents=True)
            own = {
                "RANK": rank,
                "LOCAL_RANK": rank - host.ranks.start,
                "ROLE_RANK": rank,
                "TORCHELASTIC_ERROR_FILE": self.folder / f"error-{rank}.json",
                asked.FOLDER: kept,
                asked.STEPS: steps,
                asked.OPTIONS: " ".join(options),
                asked.SHARED: self._shared,
                **(_UNCOMPILED if self.in_double else {}),
            }
            with open(self.folder / f"rank-{rank}.log", "wb") as log:
                self.processes[rank] = subprocess.Popen(
                    [sys.executable, "-u", *command],
                    env={**shared, **{name: str(value) for name, value in own.items()}},
                    cwd=host.working_folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )

    def _environment(self, host: Host) -> dict[str, str]:
        spec = importlib.util.find_spec("everyrank.scripts.on_path")
        assert spec is not None
        assert spec.origin is not None
        on_path = os.pathsep.join(filter(None, [str(Path(spec.origin).parent), os.environ.get("PYTHONPATH")]))
        values: dict[str, object] = {
            "WORLD_SIZE": self.ranks,
            "LOCAL_WORLD_SIZE": len(host.ranks),
            "ROLE_WORLD_SIZE": self.ranks,
            "GROUP_RANK": host.number,
            "GROUP_WORLD_SIZE": host.hosts,
            "ROLE_NAME": "default",
            "MASTER_ADDR": host.address,
            "MASTER_PORT": host.port,
            "TORCHELASTIC_RUN_ID": f"everyrank-{self.folder.name}",
            "TORCHELASTIC_RESTART_COUNT": 0,
            "TORCHELASTIC_MAX_RESTARTS": 0,
            "TORCHELASTIC_USE_AGENT_STORE": True,
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", 1),
            "CUDA_VISIBLE_DEVICES": "",
            "ACCELERATE_USE_CPU": True,  # on the CPU accelerate starts no group without it
            "PYTHONPATH": on_path,
            VARIABLE: self.folder / "watched",
            PYTEST: process_name(),
            asked.AFTER_TORCH: asked.FUNCTION,
        }
        return {**os.environ, **{name: str(value) for name, value in values.items()}}

    def look(self) -> None:
        """Note which ranks have ended, and whether no rank will go on."""
        for rank, process in self.processes.items():
            if rank in self.statuses or rank in self.done:
                continue
            status = status_of(process.pid)
            if status is not None:
                self.statuses[rank] = status
            elif (self.folder / f"rank-{rank}" / "done").exists():
                self.done.add(rank)
                self.done_at = time.monotonic()
        if len(self.processes) == len(self.done):
            return
        if any(self.statuses.values()):
            self.trouble = self._verdict()
        elif self.done and (self.statuses or time.monotonic() - self.done_at > _LATE):
            self.trouble = self._roll_call()

    def _verdict(self) -> str:
        """Let the watcher judge ranks of which one has ended badly."""
        run = next(iter(runs(self.folder / "watched")), None)
        if run is None:
            return self._plain_verdict()
        for rank, status in self.statuses.items():
            run.write(f"status-{self.processes[rank].pid}", Status(status))
        run.await_verdict()
        return run.text("verdict") or self._plain_verdict()

    def _plain_verdict(self) -> str:
        """Return how a rank ended, if it ended before it could be watched."""
        rank, status = next((rank, status) for rank, status in sorted(self.statuses.items()) if status)
        if os.WIFSIGNALED(status):
            return f"{self.script}: rank {rank} was killed by {signal.Signals(os.WTERMSIG(status)).name}"
        return f"{self.script}: rank {rank} ended with exit code {os.WEXITSTATUS(status)}"

    def end_late(self) -> None:
        """End this run at its time limit."""
        self.late, self.trouble = True, self._roll_call()

    def _roll_call(self) -> str:
        """Ask the ranks that live what they do."""
        run = next(iter(runs(self.folder / "watched")), None)
        if run is None or len(self.processes) < self.ranks:  # what ranks of other hosts do is not known here
            return ""
        seen = Seen(self.ranks)
        alive = [rank for rank in self.processes if rank not in self.statuses and rank not in self.done]
        for rank in range(self.ranks):
            if rank not in alive:
                seen.status[rank] = 0
                seen.ended_in_order.add(rank)
        asked_ranks = {rank for rank in alive if ask(path(str(run.path), self.processes[rank].pid))}
        until = time.monotonic() + _ANSWERS
        while asked_ranks - seen.stated.keys() and time.monotonic() < until:
            time.sleep(0.02)
            for rank in asked_ranks:
                if (stated := run.read(f"stated-{rank}", WitnessStatement)) is not None:
                    seen.stated[rank] = stated
        return text(self.script, fates(seen))

    @property
    def _shared(self) -> str:
        """The folder for what multiprocessing leaves of ranks that are killed; no other command has its name."""
        return str(self.folder / f"everyrank-{os.getpid()}-{self.folder.name}")

    def end(self) -> None:
        """End all ranks, and what they have started."""
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        remove_all(self._shared)


def listen(address: str = "127.0.0.1", port: int = 0) -> socket.socket:
    """Return the socket of the store at which ranks meet: it is served by ``serve``."""
    listening = socket.create_server((address, port), backlog=1024)
    listening.set_inheritable(False)
    return listening


def serve(listening: socket.socket) -> Any:
    """Serve the store at which ranks meet, as torchrun's agent does. It takes torch, whose import takes a while."""
    import torch.distributed as dist

    address, port = listening.getsockname()
    return dist.TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())


def run_here(
    sizes: Sequence[tuple[Size, Sequence[str]]], at_once: int, command: Sequence[str], steps: int, limit: float
) -> None:
    """Run a script at these sizes, each with its options, so many at a time, and end all that was started."""
    stores, until = [], time.monotonic() + limit
    try:
        for index in range(0, len(sizes), at_once):
            wave = sizes[index : index + at_once]
            listening = [listen() for _ in wave]
            for (size, options), each in zip(wave, listening, strict=True):
                size.start(command, steps, options, Host(range(size.ranks), each.getsockname()[1]))
            stores += [serve(each) for each in listening]
            _wait([size for size, _ in wave], until)
    finally:
        for size, _ in sizes:
            size.end()


def _wait(sizes: Sequence[Size], until: float) -> None:
    """Wait until all of these runs are over, and end them; at this time at the latest."""
    while not all(size.is_over() for size in sizes):
        for size in sizes:
            if not size.is_over():
                size.look()
                if not size.is_over() and time.monotonic() > until:
                    size.end_late()
                if size.is_over():
                    size.end()
        time.sleep(0.03)
