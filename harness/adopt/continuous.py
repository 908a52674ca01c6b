"""Runs, on a rank, test cases whose processes and default group serve all tests of a class, such as
``MultiProcContinuousTest``. Here, the world stays warm from test to test of one class."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from everyrank.adopt.recognise import TORCHS_MODULE
from everyrank.rank.torch_style import SetUpResult, TwoParts, open_for_class, rendezvous_of_class, skips_by_code

if TYPE_CHECKING:
    from everyrank.rank.context import RankContext


@contextlib.contextmanager
def continuous(rank: RankContext, case: Any, name: str) -> Iterator[None]:
    """In this context, let the ranks of this world be the processes of the case's class."""
    home: Any = sys.modules[TORCHS_MODULE]
    cls = type(case)

    def body(set_up: SetUpResult) -> None:
        __tracebackhide__ = True
        with skips_by_code(home.TEST_SKIPS):
            open_for_class(rank, cls)
            cls._run_test_given_id(case.id())

    parts = TwoParts(rank, case, name, body, like_a_rank=True)

    def start_processes(world_size: int) -> None:
        cls.processes, cls.task_queues, cls.completion_queues = [], [], []
        cls.rdvz_file = rendezvous_of_class(rank)
        parts.started()

    cls._spawn_processes = start_processes
    cls._processes_spawned = False  # so that setUp checks the class's needs again and calls the line above
    try:
        with parts.patched():
            yield
    finally:
        del cls._spawn_processes
