"""Watches the ranks of one run of a script, in a process of its own, until all have ended.

It starts with the first rank. Most runs end well, and it says nothing. If a rank fails, dies, or can never go on, it
asks the others what they do, and writes one verdict: into the folder, for the test's report, and into the file from
which torchrun shows the error of a rank. If no rank can go on, it ends one; torchrun ends the others.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from dataclasses import replace

from everyrank import proc_stat
from everyrank.controller.census import Census
from everyrank.controller.deadlock import deadlock
from everyrank.patience import CoreWaits, Patience
from everyrank.scripts.folder import Raised, ScriptFolder, ScriptRank, Status, has_ended
from everyrank.scripts.ranks import TEST
from everyrank.scripts.verdict import Seen, fates, of_all, text
from everyrank.verdict.fates import Fates
from everyrank.verdict.rules import judge
from everyrank.wire.messages import WitnessStatement
from everyrank.wire.witness_pipe import ask, path

#: It looks for new files this often, in seconds.
_EVERY = 0.05
#: Ranks that fail for one reason do so within this many seconds of each other.
_TOGETHER = 0.15
#: If a rank has lost a peer, it fails within this many seconds; and torchrun reports how the peer has ended.
_LATE = 3.0
#: If torchrun was killed, its ranks have so many seconds to end on their own; if pytest was, torchrun has them.
_ORPHANS = 1.0
#: All ranks come within this many seconds of the first, or none is left.
_COME = 600.0


class Watcher:
    """Watches one run."""

    def __init__(self, folder: ScriptFolder) -> None:
        self._folder = folder
        self._ranks: dict[int, ScriptRank] = {}
        self._ends: dict[int, int] = {}  # by rank: a descriptor that is readable once it has ended
        self._poll = select.poll()
        self._census: tuple[frozenset[int], Census] | None = None  # of these ranks, which live
        self._seen = Seen(0)
        self._asked: set[int] = set()  # ranks of which an answer is awaited
        self._judged = False

    def run(self) -> None:
        """Watch until all ranks have ended."""
        until = time.monotonic() + _COME
        while not self._over() and (self._ranks or (time.monotonic() < until and self._folder.path.exists())):
            self._look()
            if self._ranks and has_ended(next(iter(self._ranks.values())).pytest):
                self._end_all()
                return
            if self._judged or not self._ranks:
                continue
            if any(self._seen.is_bad(rank) for rank in range(self._seen.size)):
                self._judge_trouble()
            elif not _lives(self._agent):
                self._end_orphans()
            else:
                self._find_deadlock()

    @property
    def _agent(self) -> int:
        return next(iter(self._ranks.values())).agent

    def _alive(self) -> list[int]:
        return [rank for rank in sorted(self._ranks) if rank not in self._seen.status]

    def _over(self) -> bool:
        """Return whether no rank lives and none will come."""
        if not self._ranks or self._alive():
            return False
        return len(self._ranks) == self._seen.size or not _lives(self._agent)

    def _look(self) -> None:
        """Wait for a moment, and note what has happened meanwhile."""
        for fd, _ in self._poll.poll(1000 * _EVERY):
            rank = next(rank for rank, end in self._ends.items() if end == fd)
            self._note_end(rank)
        if len(self._ranks) < (self._seen.size or 1):
            self._admit()
        for rank in self._ranks.keys() - self._seen.raised.keys():
            if (raised := self._folder.read(f"raised-{rank}", Raised)) is not None:
                self._seen.raised[rank] = raised
        for rank in [rank for rank, status in self._seen.status.items() if status is None]:
            if (ended := self._folder.read(f"status-{self._ranks[rank].pid}", Status)) is not None:
                self._seen.status[rank] = ended.status
        self._hear()

    def _admit(self) -> None:
        for rank, process in self._folder.ranks().items():
            if rank not in self._ranks:
                self._ranks[rank] = process
                self._seen.size = process.size
                try:
                    self._ends[rank] = os.pidfd_open(process.pid)
                except OSError:  # it has ended already
                    self._ends[rank] = -1
                    self._note_end(rank)
                else:
                    self._poll.register(self._ends[rank], select.POLLIN)

    def _note_end(self, rank: int) -> None:
        self._seen.status[rank] = None  # torchrun may report it
        self._seen.ended_at[rank] = time.monotonic()
        if self._ends[rank] >= 0:
            self._poll.unregister(self._ends[rank])
            os.close(self._ends[rank])
        if (last := self._folder.read(f"left-{rank}", WitnessStatement)) is not None:
            self._seen.ended_in_order.add(rank)
            self._seen.stated[rank] = last

    # --- verdicts ----------------------------------------------------------------------------------

    def _judge_trouble(self) -> None:
        """Judge, since a rank has ended badly. Ranks that fail, and torchrun itself, wait for the verdict."""
        bad = [rank for rank in self._ranks if self._seen.is_bad(rank)]
        together, late = (Patience(seconds, self._waited()) for seconds in (_TOGETHER, _LATE))
        self._ask()
        while together.turn() or (late.turn() and self._is_open(bad)):
            self._look()
        # If torchrun did not wait, it has ended what has ended since.
        raised = any(rank in self._seen.raised for rank in bad)
        status = {rank: status for rank, status in self._seen.status.items() if raised or rank in bad}
        self._conclude(fates(replace(self._seen, status=status)))

    def _is_open(self, bad: list[int]) -> bool:
        """Return whether it may still be learned how one of these ranks ended, or what another one does."""
        dead = [rank for rank in bad if rank in self._seen.status and rank not in self._seen.raised]
        return bool(self._asked & set(self._alive())) or any(self._seen.status[rank] is None for rank in dead)

    def _end_orphans(self) -> None:
        """Judge and end ranks whose torchrun was killed: by a test that waited for it no longer."""
        self._ask()
        patience = Patience(_ORPHANS, self._waited())
        while self._alive() and patience.turn():
            self._look()
        if self._alive():
            self._conclude(fates(self._seen, orphaned=True))
            for rank in self._alive():
                _kill(self._ranks[rank].pid)

    def _end_all(self) -> None:
        """End torchrun and its ranks: nobody waits for them, since pytest has ended before the test.

        torchrun ends the ranks that live, and removes its files. A rank leads a session, and its children are in it.
        """
        ranks = [self._ranks[rank] for rank in self._alive()]
        agents = {rank.agent for rank in ranks if _parent(rank.pid) == rank.agent}
        for agent in agents:
            _kill(agent, signal.SIGTERM)
        patience = Patience(_ORPHANS, self._waited())
        while any(map(_lives, agents)) and patience.turn():
            self._look()
        for agent in agents:
            _kill(agent)
        for rank in self._alive():
            _kill_group(self._ranks[rank].pid)

    def _waited(self) -> CoreWaits:
        """Return the count of how long the ranks that live wait for a core."""
        return CoreWaits([self._ranks[rank].pid for rank in self._alive()])

    def _find_deadlock(self) -> None:
        """End the script if no rank that is left can ever go on."""
        ranks = self._alive()
        if len(self._ranks) < self._seen.size or not ranks:
            return
        if self._census is None or self._census[0] != frozenset(ranks):
            self._census = frozenset(ranks), Census(str(self._folder.path), TEST)
        census = self._census[1]
        for rank in ranks:
            if (stated := self._folder.read(f"stated-{rank}", WitnessStatement)) is not None:
                (self._folder.path / f"stated-{rank}").unlink()
                census.hear(rank, stated)
        heard = census.turn({rank: self._ranks[rank].pid for rank in ranks}, ())
        if heard is None:
            return
        ended = frozenset(self._seen.status)
        self._seen.stated |= heard
        statements = of_all(self._seen)
        if len(statements) < self._seen.size or (standstill := deadlock(statements, ended, float("inf"))) is None:
            return
        lead = self._conclude(fates(self._seen, deadlock=standstill.cause))
        _kill(self._ranks[lead].pid)

    def _ask(self) -> None:
        """Ask the ranks that live what they do. One that holds the GIL does not answer."""
        for rank in self._alive():
            self._seen.stated.pop(rank, None)
            (self._folder.path / f"stated-{rank}").unlink(missing_ok=True)
            if ask(path(str(self._folder.path), self._ranks[rank].pid)):
                self._asked.add(rank)

    def _hear(self) -> None:
        """Note what the ranks have answered."""
        for rank in list(self._asked):
            if (stated := self._folder.read(f"stated-{rank}", WitnessStatement)) is not None:
                self._seen.stated[rank] = stated
            if stated is not None or rank in self._seen.raised:
                self._asked.discard(rank)

    def _conclude(self, fates: Fates) -> int:
        """Write the verdict where the test and the ranks that wait find it. Return the rank that explains it."""
        self._judged = True
        rank = self._show(fates)
        self._folder.write("verdict", text(self._ranks[rank].script, fates))
        return rank

    def _show(self, fates: Fates) -> int:
        """Let torchrun show the verdict as the error of the rank that explains it."""
        lead = judge(fates).lead
        rank = lead if lead in self._ranks else min(self._ranks)
        process = self._ranks[rank]
        _write_error(process.error_file, text(process.script, fates))
        return rank


def _write_error(file: str, message: str) -> None:
    """Write the error of a rank as torchrun reads it. What the script's own ``record`` has written stays."""
    if os.path.exists(file) and not _is_ours(file):
        return
    more = {"py_callstack": f"everyrank: {message}", "timestamp": str(int(time.time())), "everyrank": True}
    data = {"message": {"message": message.partition("\n")[0], "extraInfo": more}}
    with contextlib.suppress(OSError):
        with open(f"{file}.half", "w") as half:
            json.dump(data, half)
        os.replace(f"{file}.half", file)


def _is_ours(file: str) -> bool:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError), open(file) as written:
        return bool(json.load(written)["message"]["extraInfo"].get("everyrank"))
    return False


def _lives(pid: int) -> bool:
    stat = proc_stat.find(pid)
    return stat is not None and not stat.has_ended


def _parent(pid: int) -> int:
    stat = proc_stat.find(pid)
    return stat.parent if stat is not None else 0


def _kill(pid: int, number: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _kill_group(pid: int) -> None:
    """End a rank, and its children if it leads them."""
    with contextlib.suppress(ProcessLookupError):
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGKILL)
    _kill(pid)


if __name__ == "__main__":
    watched = ScriptFolder(sys.argv[1])
    try:
        Watcher(watched).run()
    except Exception as error:
        watched.write("trouble", repr(error))
    finally:
        watched.write("over", "")
