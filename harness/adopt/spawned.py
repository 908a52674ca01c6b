"""Runs, on a rank, test cases that start processes for each test, such as ``MultiProcessTestCase``."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from everyrank.adopt.recognise import TORCHS_MODULE
from everyrank.rank.context import current_rank
from everyrank.rank.groups import destroy_after_test
from everyrank.rank.seeds import seed_generators
from everyrank.rank.torch_style import SetUpResult, TwoParts, skips_by_code

if TYPE_CHECKING:
    from everyrank.rank.context import RankContext


@contextlib.contextmanager
def spawned(rank: RankContext, case: Any, name: str) -> Iterator[None]:
    """In this context, let the ranks of this world be the case's processes."""
    home: Any = sys.modules[TORCHS_MODULE]

    def body(set_up: SetUpResult) -> None:
        __tracebackhide__ = True
        with skips_by_code(home.TEST_SKIPS):
            _run(type(case), rank.world.rank, name, set_up)

    parts = TwoParts(rank, case, name, body)
    case._start_processes = lambda proc: parts.started({"fake_pg": getattr(case, "fake_pg", False)})
    with pytest.MonkeyPatch.context() as patch, parts.patched():
        patch.setattr(home.MultiProcessTestCase, "run_test", _run_test)
        yield


def _run(cls: Any, rank: int, name: str, set_up: SetUpResult) -> None:
    """Call what a started process calls. Classes override it to open the default group around each test."""
    __tracebackhide__ = True
    multiprocessing.set_start_method("spawn", force=True)  # as in a process that multiprocessing spawned
    parent_end, child_end = multiprocessing.Pipe()
    try:
        cls._run(rank, name, set_up.file_name, child_end, **set_up.more)
    finally:
        parent_end.close()
        child_end.close()


def _run_test(self: Any, test_name: str, parent_pipe: Any) -> None:
    """Run the method as torch does, but raise an error, for pytest, instead of ending with an exit code."""
    __tracebackhide__ = True
    import torch.sparse as sparse

    os.environ["TORCH_SHOW_CPP_STACKTRACES"] = "1"
    # torch's TestCase.setUp enables this in the process that starts the others. In those it is off.
    sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]
    seed_as_torch_does()
    getattr(self, test_name)()
    if self.destroy_pg_upon_exit:
        destroy_after_test(current_rank())


def seed_as_torch_does() -> None:
    """Seed all ranks alike: tests written for torch's harness rely on it."""
    common: Any = sys.modules["torch.testing._internal.common_utils"]
    seed_generators(common.SEED)
