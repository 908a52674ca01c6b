"""Finds out whether a whole world stands still: no thread of any rank has run for a while, and none will.

The kernel counts the context switches of each thread: a thread whose count does not change has not run at all.
This works on Linux only; elsewhere no world is ever found to stand still.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field

#: gloo's event loop wakes a hundred times a second without work. This share of a core is more than that takes (0.15 %
#: was measured), and less than any transfer takes.
_LOOP = "gloo_tcp_loop"
_IDLE = 0.01
#: gloo's workers sleep until there is work, and the server of a TCPStore sleeps until a client asks.
_WORKERS = ("pt_gloo_runloop", "pt_tcpstore")

#: The number of futex on x86-64 and on 64-bit ARM. An unknown thread may sleep in it without a time limit.
_FUTEX = {"202", "98"}

Thread = tuple[int, int]  # process and thread


@dataclass(frozen=True)
class Look:
    """All threads of some processes at one moment. All of them sleep, except gloo's loops."""

    time: float
    switches: dict[Thread, int] = field(default_factory=dict)  # the context switches of each thread so far
    loops: dict[Thread, float] = field(default_factory=dict)  # the seconds that each of gloo's loops has run
    unknown: frozenset[Thread] = frozenset()  # neither main threads nor known threads of torch

    def still_since(self, earlier: Look, excluding: frozenset[Thread] = frozenset()) -> bool:
        """Return whether no thread has run since then, except the excluded threads."""
        now = {thread: count for thread, count in self.switches.items() if thread not in excluding}
        before = {thread: count for thread, count in earlier.switches.items() if thread not in excluding}
        idle = _IDLE * (self.time - earlier.time)
        return now == before and all(
            ran - earlier.loops.get(thread, 0.0) <= idle for thread, ran in self.loops.items()
        )


def look(pids: Iterable[int | None], time: float) -> Look | None:
    """Return the threads of these processes.

    Return None if a process is awake, stopped or traced, has children, or cannot be inspected.
    """
    switches: dict[Thread, int] = {}
    unknown = set()
    loops = {}
    try:
        for pid in pids:
            for name in os.listdir(f"/proc/{pid}/task"):
                task = f"/proc/{pid}/task/{name}"
                thread = (int(pid or 0), int(name))
                facts = _facts(f"{task}/status")
                loop = facts["Name"] == _LOOP
                if facts["State"][0] not in ("SR" if loop else "S") or _read(f"{task}/children").strip():
                    return None
                if loop:
                    loops[thread] = int(_read(f"{task}/schedstat").split()[0]) / 1e9
                    continue
                switches[thread] = int(facts["voluntary_ctxt_switches"]) + int(facts["nonvoluntary_ctxt_switches"])
                if thread[0] != thread[1] and not facts["Name"].startswith(_WORKERS):
                    unknown.add(thread)
    except (OSError, KeyError, ValueError, IndexError):
        return None
    return Look(time, switches, loops, frozenset(unknown)) if switches else None


def sleeps_for_ever(thread: Thread) -> bool:
    """Return whether a thread waits for another thread without a time limit."""
    try:
        number, *arguments = _read(f"/proc/{thread[0]}/task/{thread[1]}/syscall").split()
    except (OSError, ValueError):
        return False
    return number in _FUTEX and len(arguments) > 3 and int(arguments[3], 16) == 0


def _facts(path: str) -> dict[str, str]:
    facts = {}
    for line in _read(path).splitlines():
        name, _, value = line.partition(":")
        facts[name] = value.strip()
    return facts


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()
