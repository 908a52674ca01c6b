"""On a rank: test cases whose processes and default group serve all tests of a class, such as
``MultiProcContinuousTest``. Here too: the world stays warm from test to test of one class."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from everyrank.adopt.recognise import HOME
from everyrank.adopt.spawned import skips_of
from everyrank.parts import Parts, Start, open_for_class, rendezvous_of_class

if TYPE_CHECKING:
    from everyrank.rank import Rank


@contextlib.contextmanager
def continuous(rank: Rank, case: Any, name: str) -> Iterator[None]:
    """While the case runs in here, the processes of its class are the ranks of this world."""
    home: Any = sys.modules[HOME]
    cls = type(case)

    def body(start: Start) -> None:
        __tracebackhide__ = True
        with skips_of(home):
            open_for_class(rank, cls)
            cls._run_test_given_id(case.id())

    parts = Parts(rank, case, name, body, like_a_rank=True)

    def start_processes(world_size: int) -> None:
        cls.processes, cls.task_queues, cls.completion_queues = [], [], []
        cls.rdvz_file = rendezvous_of_class(rank)
        parts.started()

    cls._spawn_processes = start_processes
    cls._processes_spawned = False  # so that setUp looks again at what the class needs, and comes to the line above
    try:
        with parts.played():
            yield
    finally:
        del cls._spawn_processes
