"""Start a script at one size where a launcher of worlds puts ranks: on a Ray cluster, say.

The first rank of each host starts the script's ranks of that host, as its children. They meet at a store of rank 0.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from everyrank.call import torchrun
from everyrank.call.run import run
from everyrank.errors import MisuseError, WorldFailed
from everyrank.parity.script.start import Host, Size, listen, serve
from everyrank.wire import torchrun_variables

#: What hosts need.
_ALL = "give the command where all hosts have the script"
#: The world has so many seconds for its own start and end, beside those of the script.
_MORE = 60.0
#: A host looks at its ranks, and at what the others say, this often in seconds.
_OFTEN = 0.05
#: How hosts hear of each other, in the store that the script has, too.
_TROUBLE, _OVER, _LEFT = "everyrank/trouble", "everyrank/over", "everyrank/left"
#: By this file a host knows that it sees the command's own folder.
_TOKEN = "token"


@dataclass(frozen=True)
class Ended:
    """How the ranks of one host have ended."""

    statuses: dict[int, int]
    done: set[int]
    trouble: str
    late: bool
    is_first: bool = True
    """Whether no other host was in trouble before."""
    files: dict[str, bytes] = field(default_factory=dict)
    """What they have kept, if this host does not see the command's folder."""


@dataclass(frozen=True)
class Agent:
    """What a world's ranks are asked to do."""

    size: int
    script: str
    command: tuple[str, ...]
    steps: int
    options: tuple[str, ...]
    limit: float
    folder: Path
    token: str
    working_folder: str

    def __call__(self) -> Ended | None:
        if os.environ["LOCAL_RANK"] != "0":
            return None
        if _text(self.folder / _TOKEN) == self.token:
            return self._run(self.folder)
        with tempfile.TemporaryDirectory(prefix="everyrank-parity-") as name:
            ended = self._run(Path(name))
            ended.files.update(_files(Path(name)))
            return ended

    def _run(self, folder: Path) -> Ended:
        size = Size(self.size, folder, self.script)
        rank, (address, port) = torchrun_variables.rank(), torchrun_variables.address()
        number, hosts = (int(os.environ[name]) for name in ("GROUP_RANK", "GROUP_WORLD_SIZE"))
        ranks = range(rank, rank + int(os.environ["LOCAL_WORLD_SIZE"]))
        store = serve(listen(address, port)) if rank == 0 else _client(address, port)
        until = time.monotonic() + self.limit
        try:
            host = Host(ranks, port, address, number, hosts, self.working_folder)
            size.trouble = self._trouble()
            if not size.trouble:
                size.start(self.command, self.steps, self.options, host)
            self._wait(size, store, host, until)
        finally:
            size.end()
        is_first = not store.check([_TROUBLE]) or store.get(_TROUBLE) == str(number).encode()
        store.add(_LEFT, 1)
        while rank == 0 and store.add(_LEFT, 0) < hosts and time.monotonic() < until + _MORE:
            time.sleep(_OFTEN)  # the others ask this host's store
        return Ended(size.statuses, size.done, size.trouble, size.late, is_first)

    def _trouble(self) -> str:
        """Return what this host lacks."""
        files = [] if self.command[0] == "-m" else [os.path.join(self.working_folder, self.command[0])]
        missing = [path for path in (self.working_folder, *files) if not os.path.exists(path)]
        host = f"{self.script}: the host {socket.gethostname()}"
        return f"{host} has no {missing[0]}: {_ALL}" if missing else ""

    def _wait(self, size: Size, store: Any, host: Host, until: float) -> None:
        """Wait until the ranks of all hosts are over, or those of one are in trouble."""
        is_over = False
        while not store.check([_TROUBLE]) and store.add(_OVER, 0) < host.hosts:
            size.look()
            if not size.is_over() and time.monotonic() > until:
                size.end_late()
            if size.trouble or size.late:
                store.compare_set(_TROUBLE, "", str(host.number))  # of the first host alone
            elif size.is_over() and not is_over:
                is_over = True
                store.add(_OVER, 1)
            time.sleep(_OFTEN)


def run_by(
    launcher: str, sizes: Sequence[tuple[Size, Sequence[str]]], command: Sequence[str], steps: int, limit: float
) -> None:
    """Run a script at these sizes, each with its options. Raise MisuseError if the launcher has no ranks for it."""
    if torchrun.is_rank():
        raise MisuseError("torchrun has started this process: start everyrank parity itself, without torchrun")
    if launcher == "torchrun":
        raise MisuseError("without this option ranks are started as torchrun starts them: leave it out, or name ray")
    until = time.monotonic() + limit
    for size, options in sizes:
        _run_by(launcher, size, options, command, steps, max(1.0, until - time.monotonic()))


def _run_by(
    launcher: str, size: Size, options: Sequence[str], command: Sequence[str], steps: int, limit: float
) -> None:
    size.options = options
    size.folder.mkdir(parents=True)
    token = uuid.uuid4().hex
    (size.folder / _TOKEN).write_text(token)
    agent = Agent(
        size.ranks,
        size.script,
        tuple(command),
        steps,
        tuple(options),
        limit,
        size.folder,
        token,
        os.getcwd(),
    )
    try:
        of_hosts = _call(agent, size.ranks, launcher, limit)
    except MisuseError:
        shutil.rmtree(size.folder)  # --keep may name its parent again
        raise
    finally:
        (size.folder / _TOKEN).unlink(missing_ok=True)
    for ended in sorted(filter(None, of_hosts), key=lambda ended: not ended.is_first):
        size.statuses |= ended.statuses
        size.done |= ended.done
        size.trouble = size.trouble or ended.trouble
        size.late = size.late or ended.late
        for name, data in ended.files.items():
            (size.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (size.folder / name).write_bytes(data)


def _call(agent: Agent, ranks: int, launcher: str, limit: float) -> list[Ended | None]:
    import pytest

    try:
        return run(agent, ranks, group=False, launcher=launcher, timeout=limit + 2 * _MORE)
    except pytest.skip.Exception as skipped:
        raise MisuseError(f"{launcher} cannot start {ranks} ranks: {skipped}") from None
    except WorldFailed as failed:
        raise MisuseError(f"{launcher} has lost a process that starts ranks:{failed}") from None


def _client(address: str, port: int) -> Any:
    import torch.distributed as dist

    return dist.TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=_MORE))


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text()
    return ""


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "watched" not in path.relative_to(folder).parts
    }
