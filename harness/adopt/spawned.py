"""On a rank: test cases that start processes for each test, such as ``MultiProcessTestCase``."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import unittest
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from everyrank.adopt.recognise import HOME
from everyrank.parts import Parts, Start
from everyrank.seeds import seed_generators

if TYPE_CHECKING:
    from everyrank.rank import Rank


@contextlib.contextmanager
def spawned(rank: Rank, case: Any, name: str) -> Iterator[None]:
    """While the case runs in here, its processes are the ranks of this world."""
    home: Any = sys.modules[HOME]

    def body(start: Start) -> None:
        __tracebackhide__ = True
        with skips_of(home):
            _run(type(case), rank.world.rank, name, start)

    parts = Parts(rank, case, name, body)
    case._start_processes = lambda proc: parts.started({"fake_pg": getattr(case, "fake_pg", False)})
    with _in_place(home.MultiProcessTestCase, "run_test", _run_test), parts.played():
        yield


def _run(cls: Any, rank: int, name: str, start: Start) -> None:
    """What a started process calls. Classes override it, to open the default group around each test."""
    __tracebackhide__ = True
    multiprocessing.set_start_method("spawn", force=True)  # as multiprocessing does in what it has spawned
    ours, theirs = multiprocessing.Pipe()
    try:
        cls._run(rank, name, start.file_name, theirs, **start.more)
    finally:
        ours.close()
        theirs.close()


def _run_test(self: Any, test_name: str, parent_pipe: Any) -> None:
    """As torch's, but an error is raised, for pytest, and not turned into an exit code."""
    __tracebackhide__ = True
    import torch.distributed as dist
    import torch.sparse as sparse

    os.environ["TORCH_SHOW_CPP_STACKTRACES"] = "1"
    # torch's TestCase.setUp turns this on in the process that starts the others. In those it is off.
    sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]
    seed_as_torch_does()
    getattr(self, test_name)()
    if self.destroy_pg_upon_exit:
        with contextlib.suppress(AssertionError, ValueError):
            dist.destroy_process_group()


def seed_as_torch_does() -> None:
    """All ranks alike: tests that are written for torch's harness count on it."""
    common: Any = sys.modules["torch.testing._internal.common_utils"]
    seed_generators(common.SEED)


@contextlib.contextmanager
def skips_of(home: Any) -> Iterator[None]:
    """torch's decorators skip by exit code."""
    __tracebackhide__ = True
    try:
        yield
    except SystemExit as end:
        reason = next((skip.message for skip in home.TEST_SKIPS.values() if skip.exit_code == end.code), None)
        if reason is None:
            raise
        raise unittest.SkipTest(reason) from None


@contextlib.contextmanager
def _in_place(owner: type, name: str, function: Callable[..., Any]) -> Iterator[None]:
    before = vars(owner)[name]
    setattr(owner, name, function)
    try:
        yield
    finally:
        setattr(owner, name, before)
