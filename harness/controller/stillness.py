"""Finds out whether a whole world stands still: no thread of any rank has run for a while, and none will.

The kernel counts the context switches of each thread: a thread whose count does not change has not run at all.
This works on Linux only; elsewhere no world is ever found to stand still.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field

from everyrank.launch.sleep import Thread

#: gloo's event loop wakes a hundred times a second without work. This share of a core is more than that takes (0.15 %
#: was measured), and less than any transfer takes.
_LOOP = "gloo_tcp_loop"
_IDLE = 0.01
#: A loop that has had this many turns since has seen all that had arrived before; so has a thread that polls.
_TURNS = 2
_POLLS = 10
#: A main thread that polls a FileStore, 100 times a second, runs for about 0.4 % of the time.
_POLLING = 0.02
#: gloo's workers sleep until there is work, and the server of a TCPStore sleeps until a client asks.
_WORKERS = ("pt_gloo_runloop", "pt_tcpstore")


@dataclass(frozen=True)
class Look:
    """All threads of some processes at one moment. All of them sleep, except gloo's loops."""

    time: float
    switches: dict[Thread, int] = field(default_factory=dict)  # the context switches of each thread so far
    loops: dict[Thread, float] = field(default_factory=dict)  # the seconds that each of gloo's loops has run
    unknown: frozenset[Thread] = frozenset()  # neither main threads nor known threads of torch
    turns: dict[Thread, int] = field(default_factory=dict)  # how often each of gloo's loops was given a core
    mains: dict[Thread, float] = field(default_factory=dict)  # the seconds that each main thread has run
    children: frozenset[int] = frozenset()  # the processes that these have started, and those that they have

    def still_since(self, earlier: Look, excluding: frozenset[Thread] = frozenset(), may_poll: bool = False) -> bool:
        """Return whether no thread has run since then, except the excluded threads.

        With ``may_poll``, main threads may have run for a small share of the time.
        """
        threads = (self.switches.keys() | earlier.switches.keys()) - excluding
        moved = {thread for thread in threads if self.switches.get(thread) != earlier.switches.get(thread)}
        since = self.time - earlier.time
        if may_poll:
            moved = {thread for thread in moved if not self._ran_little(thread, earlier, _POLLING * since)}
        return not moved and all(
            ran - earlier.loops.get(thread, 0.0) <= _IDLE * since for thread, ran in self.loops.items()
        )

    def rests_since(self, earlier: Look) -> bool:
        """Return whether the main threads are the same and have run for at most a small share of the time."""
        seconds = _POLLING * (self.time - earlier.time)
        return self.mains.keys() == earlier.mains.keys() and all(
            self._ran_little(main, earlier, seconds) for main in self.mains
        )

    def _ran_little(self, thread: Thread, earlier: Look, seconds: float) -> bool:
        if thread not in self.mains or thread not in earlier.mains:
            return False
        return self.mains[thread] - earlier.mains[thread] <= seconds

    def moved(self, thread: Thread, earlier: Look) -> bool:
        return self.switches.get(thread) != earlier.switches.get(thread)

    def polled(self, thread: Thread, earlier: Look) -> bool:
        """Return whether a thread that polls has seen all that had happened before."""
        return self.switches.get(thread, 0) - earlier.switches.get(thread, 0) >= _POLLS

    def rests_or_polls_since(self, earlier: Look) -> bool:
        """Return whether each main thread that has run has polled."""
        return all(not self.moved(main, earlier) or self.polled(main, earlier) for main in self.mains)

    def loops_turned(self, earlier: Look) -> bool:
        """Return whether each loop of gloo has had its turn since: then nothing is on its way from rank to rank."""
        return all(turns - earlier.turns.get(loop, turns) >= _TURNS for loop, turns in self.turns.items())


def look(pids: Iterable[int | None], time: float) -> Look | None:
    """Return the threads of these processes, and the processes that they have started.

    Return None if a process is awake, stopped or traced, or cannot be inspected.
    """
    switches: dict[Thread, int] = {}
    unknown: set[Thread] = set()
    dead: set[int] = set()
    loops, turns, mains = {}, {}, {}
    try:
        families = list(pids)
        ranks = len(families)
        for number, pid in enumerate(families):  # which grows by the children
            for name in os.listdir(f"/proc/{pid}/task"):
                task = f"/proc/{pid}/task/{name}"
                thread = (int(pid or 0), int(name))
                facts = _facts(f"{task}/status")
                loop, main = facts["Name"] == _LOOP, thread[0] == thread[1]
                if number >= ranks and facts["State"][0] in "ZX":
                    dead.add(thread[0])
                    continue
                if facts["State"][0] not in ("SR" if loop else "S"):
                    return None
                families += map(int, _read(f"{task}/children").split())
                if number >= ranks and main:
                    continue  # what it waits for, its rank's witness states: it may wake without work
                if number < ranks and (loop or main):
                    ran, _, slices = map(int, _read(f"{task}/schedstat").split())
                    if loop:
                        loops[thread], turns[thread] = ran / 1e9, slices
                        continue
                    mains[thread] = ran / 1e9
                switches[thread] = int(facts["voluntary_ctxt_switches"]) + int(facts["nonvoluntary_ctxt_switches"])
                if number < ranks and not main and not facts["Name"].startswith(_WORKERS):
                    unknown.add(thread)
    except (OSError, KeyError, ValueError, IndexError):
        return None
    children = frozenset(int(pid or 0) for pid in families[ranks:]) - dead
    return Look(time, switches, loops, frozenset(unknown), turns, mains, children) if switches else None


def _facts(path: str) -> dict[str, str]:
    facts = {}
    for line in _read(path).splitlines():
        name, _, value = line.partition(":")
        facts[name] = value.strip()
    return facts


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()
