"""One run of pytest, of whose processes some are killed as planned."""

from __future__ import annotations

import contextlib
import json
import math
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from everyrank.patience import CoreWaits, Patience

from tests.kills import left, processes
from tests.kills.judge import Kill, Line, Seen, Span
from tests.kills.plan import ENDING, Plan, Shot, pick
from tests.kills.truth import DEADLINE

SUITE = Path(__file__).parent / "suite"

#: A run that has not ended within this many seconds never will: one without kills takes a few. The time in which its
#: processes wait for a core does not count.
BOUND = {"fork": 240.0, "spawn": 300.0, "torchrun": 300.0, "ray": 420.0}


@dataclass
class Hunt:
    """What happened in a run so far."""

    plan: Plan
    folder: Path
    patience: float = 1.0  # by which all limits are longer
    marker: str = field(default_factory=lambda: uuid.uuid4().hex)
    kills: list[Kill] = field(default_factory=list)
    log: list[dict[str, Any]] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    pids: set[int] = field(default_factory=set)  # all that were seen
    roles: dict[int, str] = field(default_factory=dict)
    stacks: str = ""

    def run(self) -> Seen:
        temp, leases = self.folder / "tmp", self.folder / "leases"
        temp.mkdir(parents=True)
        leases.mkdir()
        before = left.shared_memory()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock, open(self.folder / "out.txt", "wb") as out:
            sock.bind(str(self.folder / "events"))
            root = subprocess.Popen(
                self._command(),
                cwd=SUITE,
                env=self._environment(temp, leases),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
            try:
                ended = self._follow(root, sock)
            except BaseException:  # Ctrl-C
                left.end(self.marker)
                raise
        if not ended:
            self.stacks = left.stacks(self.marker)
        things = self._left(temp, leases, before) if ended else []
        left.end(self.marker)
        status = root.wait()
        output = (self.folder / "out.txt").read_text(errors="replace")
        lines, has_footer = _read(self.folder / "run.jsonl")
        return Seen(self.kills, self.spans, lines, status if ended else None, has_footer, output, things)

    def _left(self, temp: Path, leases: Path, before: set[str]) -> list[str]:
        within = left.WITHIN_RAY if self.plan.launcher == "ray" else left.WITHIN
        return left.found(self.marker, temp, leases, before, self.pids, within * self.patience)

    def _command(self) -> list[str]:
        launcher = self.plan.launcher
        command = [sys.executable, "-m", "pytest", "hunted.py", f"--launcher={launcher}", "-q"]
        command += [f"--run-file={self.folder / 'run.jsonl'}", "-o", f"everyrank_timeout={DEADLINE * self.patience}"]
        if self.plan.workers:
            command.append(f"-n{self.plan.workers}")
        if launcher == "torchrun":
            agent = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
            command[:3] = [*agent, "-m", "pytest"]
        return command

    def _environment(self, temp: Path, leases: Path) -> dict[str, str]:
        outer = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "RAY_"))}
        return {
            **outer,
            processes.MARKER: self.marker,
            "KILLS_SOCKET": str(self.folder / "events"),
            "TMPDIR": str(temp),
            "EVERYRANK_LEASES": str(leases),
        }

    # --- while it runs -----------------------------------------------------------------------------

    def _follow(self, root: subprocess.Popen[bytes], sock: socket.socket) -> bool:
        """Kill as planned until the run ends. Return whether it has ended in time."""
        waiting = {shot.event: shot for shot in self.plan.shots}
        due: list[tuple[float, Shot]] = []
        bound = Patience(BOUND[self.plan.launcher] * self.patience, CoreWaits([root.pid]))
        sock.setblocking(False)
        with selectors.DefaultSelector() as selector, _pidfd(root.pid) as end:
            selector.register(sock, selectors.EVENT_READ)
            selector.register(end, selectors.EVENT_READ)
            while root.poll() is None and (left := bound.turn()):
                now = time.monotonic()
                selector.select(max(0.0, min([left, *(moment - now for moment, _ in due)])))
                for event in _events(sock):
                    self._note(event)
                    if shot := waiting.pop((event["kind"], event["test"]), None):
                        due.append((time.monotonic() + shot.delay, replace(shot, pid=_knocks(event))))
                for moment, shot in sorted(due, key=lambda pair: pair[0]):
                    if moment <= time.monotonic():
                        due.remove((moment, shot))
                        self._shoot(shot, root.pid)
            for event in _events(sock):
                self._note(event)
        return root.poll() is not None

    def _note(self, event: dict[str, Any]) -> None:
        kind, test, pid = event["kind"], event["test"], event["pid"]
        self.pids.add(pid)
        if kind == "start":
            self.spans.append(Span(test, pid, event["at"]))
        for index, span in enumerate(self.spans):
            if span.test != test or span.ended != math.inf:
                continue
            if kind == "finish" and span.controller == pid:
                self.spans[index] = Span(test, pid, span.began, event["at"], span.ranks)
            elif kind == "began":
                ranks = {pid: event["at"], **span.ranks}
                self.spans[index] = Span(test, span.controller, span.began, span.ended, ranks)

    def _shoot(self, shot: Shot, root: int) -> None:
        living = processes.found(self.marker)
        roles: dict[str, list[int]] = {}
        for role, pids in processes.by_role(living, root, self.plan.launcher, self.plan.workers).items():
            for pid in pids:  # an orphan keeps its role
                roles.setdefault(self.roles.setdefault(pid, role) if role == "other" else role, []).append(pid)
        self.pids |= set(living)
        if (target := pick(shot, roles)) is None:
            return
        role, pid = target
        family = [pid] if role == "rank" else processes.below(living, pid)
        sent = time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, getattr(signal, shot.signal))
            self.kills.append(Kill(role, pid, shot.signal, sent, self._gone(family, shot.signal), role in ENDING))
            self.log.append(
                {"event": "/".join(shot.event), "role": role, "signal": shot.signal, "pid": pid, "at": sent}
            )

    def _gone(self, family: list[int], name: str) -> float:
        """Wait, briefly, until a killed process and all that die with it have ended."""
        if name == "SIGSTOP":
            return math.inf
        until = time.monotonic() + 5
        while not all(processes.is_gone(pid) for pid in family):
            if time.monotonic() > until:
                return math.inf
            time.sleep(0.001)
        return time.monotonic()


def _knocks(event: dict[str, Any]) -> int:
    """Return the process whose knock is reported, or 0."""
    return (processes.at_port(event["port"]) or 0) if event["kind"] == "knock" else 0


@contextlib.contextmanager
def _pidfd(pid: int) -> Any:
    fd = os.pidfd_open(pid)
    try:
        yield fd
    finally:
        os.close(fd)


def _events(sock: socket.socket) -> list[dict[str, Any]]:
    found = []
    with contextlib.suppress(BlockingIOError):
        while True:
            found.append(json.loads(sock.recv(1 << 12)))
    return found


def _read(path: Path) -> tuple[list[Line], bool]:
    """Return the tests of a run file, which may be cut off, and whether it has a footer."""
    lines, has_footer = [], False
    for text in path.read_text().splitlines() if path.exists() else ():
        with contextlib.suppress(ValueError):
            data = json.loads(text)
            has_footer |= data["line"] == "footer"
            if data["line"] == "case":
                name = data["id"].rpartition("::")[2]
                lines.append(Line(name, data["outcome"], data.get("message", ""), data.get("text", "")))
    return lines, has_footer
