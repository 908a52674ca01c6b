"""Test cases whose method runs on many ranks, under the names of torch's private classes.

setUp and tearDown run once; the method runs on every rank, on an instance that ``_run`` creates there. This instance
has ``rank``, ``file_name`` and the attributes that the constructor sets, but none that setUp sets. torch's classes do
the same, since their method runs in other processes than setUp.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import tempfile
import unittest
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as torch_dist
from everyrank.errors import MisuseError
from everyrank.rank.torch_style import SetUpResult, TwoParts, open_for_class, rendezvous_of_class, skips_by_code
from everyrank.testcase.case import TestCase, set_rng_seed
from everyrank.testcase.skips import TEST_SKIPS, count_accelerators

dist: Any = torch_dist  # torch.distributed has more names than it exports

DEFAULT_WORLD_SIZE = 4

#: The time limit of a test in seconds, and the limits that a class or a file sets by the name of the method.
TIMEOUT_DEFAULT = int(os.environ.get("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "300"))
TIMEOUT_OVERRIDE: dict[str, int] = {}


def get_timeout(test_id: str) -> int:
    return TIMEOUT_OVERRIDE.get(test_id.rpartition(".")[2], TIMEOUT_DEFAULT)


class _OnRanks(TestCase):
    """The common base of the test cases in this file."""

    MAIN_PROCESS_RANK = -1
    everyrank_world = True
    _everyrank_like_a_rank = False

    @classmethod
    def everyrank_declares(cls, name: str) -> dict[str, Any]:
        """Return what a test declares about its world besides the size."""
        return {"timeout": float(get_timeout(name)), "timeout_from": "get_timeout()", "fresh": True}

    def run(self, result: Any = None) -> Any:
        from everyrank.rank.context import current_rank

        try:
            rank = current_rank()
        except MisuseError:
            raise MisuseError(
                f"{type(self).__name__} runs on the ranks of a world: run it with pytest, or end the file with "
                "everyrank.testcase.run_tests()"
            ) from None
        self._everyrank_parts = TwoParts(
            rank, self, self._testMethodName, self._everyrank_body, self._everyrank_like_a_rank
        )
        with self._everyrank_parts.patched():
            return super().run(result)

    def _everyrank_body(self, set_up: SetUpResult) -> None:
        raise NotImplementedError

    def _current_test_name(self) -> str:
        return str(self.id()).rpartition(".")[2]

    @property
    def is_master(self) -> bool:
        return bool(self.rank == 0)


class MultiProcessTestCase(_OnRanks):
    """Runs each test in new processes. setUp calls ``_spawn_processes()`` after ``super().setUp()``."""

    rank: int
    file_name: str

    @property
    def world_size(self) -> int:
        return DEFAULT_WORLD_SIZE

    @property
    def destroy_pg_upon_exit(self) -> bool:
        """Whether a default group that the method leaves open is destroyed after it."""
        return True

    def setUp(self) -> None:
        super().setUp()
        self.processes: list[Any] = []
        self.pid_to_pipe: dict[int, Any] = {}
        self.special_return_code_checks: dict[Any, int] = {}
        self.skip_return_code_checks: list[Any] = []
        self.rank = self.MAIN_PROCESS_RANK
        with tempfile.NamedTemporaryFile(delete=False) as file:
            self.file_name = file.name

    def tearDown(self) -> None:
        super().tearDown()
        self.processes = []

    def _spawn_processes(self) -> None:
        self._everyrank_parts.started()

    _fork_processes = _spawn_processes

    def _everyrank_body(self, set_up: SetUpResult) -> None:
        __tracebackhide__ = True
        from everyrank.rank.context import current_rank

        cls = type(self)
        with skips_by_code(TEST_SKIPS):
            cls._run(current_rank().world.rank, self._testMethodName, set_up.file_name, None)

    @classmethod
    def _run(cls, rank: int, test_name: str, file_name: str, parent_pipe: Any, **kwargs: Any) -> None:
        """Run the test on a rank; a class may override it to wrap each of its tests."""
        __tracebackhide__ = True
        self = cls(test_name)
        self.rank = rank
        self.file_name = file_name
        self.run_test(test_name, parent_pipe)

    def run_test(self, test_name: str, parent_pipe: Any) -> None:
        """Run the method itself on a rank."""
        __tracebackhide__ = True
        from everyrank.rank.context import current_rank
        from everyrank.rank.groups import destroy_after_test

        os.environ["TORCH_SHOW_CPP_STACKTRACES"] = "1"
        set_rng_seed()
        getattr(self, test_name)()
        if self.destroy_pg_upon_exit:
            destroy_after_test(current_rank())


class DistributedTestBase(MultiProcessTestCase):
    """Starts the ranks in setUp; a test opens its group by ``create_pg(device)``."""

    def setUp(self) -> None:
        super().setUp()
        os.environ["WORLD_SIZE"] = str(self.world_size)
        self._spawn_processes()

    def tearDown(self) -> None:
        super().tearDown()
        with contextlib.suppress(OSError):
            os.remove(self.file_name)

    def backend(self, device: str) -> str:
        known = {"cuda": "nccl", "hpu": "hccl", "xpu": "xccl"}
        return next((backend for kind, backend in known.items() if kind in str(device)), "gloo")

    def create_pg(self, device: str, world_size: int | None = None) -> Any:
        """Open the default group on this kind of device."""
        size = self.world_size if world_size is None else world_size
        store = dist.FileStore(self.file_name, size)
        dist.init_process_group(self.backend(device), world_size=size, rank=self.rank, store=store)
        if self.backend(device) in ("nccl", "xccl"):
            own_device = torch.device(f"{torch.device(device).type}:{self.rank}")
            torch.set_default_device(own_device)
            torch.get_device_module(own_device.type).set_device(self.rank)
        return dist.group.WORLD

    def rank_to_device(self, device: str) -> dict[int, list[int]]:
        count = max(torch.get_device_module(device).device_count(), 1)
        return {rank: [rank % count] for rank in range(self.world_size)}


class MultiProcContinuousTest(_OnRanks):
    """Runs all tests of a class in the same processes and default group, as long as no test breaks them."""

    world_size: int = -2  # as many as there are devices
    rank: int = -2
    rdvz_file: str | None = None
    timeout: timedelta = timedelta(seconds=120)
    pg: Any
    _everyrank_like_a_rank = True

    def __init__(self, method_name: str = "runTest", methodName: str = "runTest") -> None:
        super().__init__(method_name, methodName)
        if self.world_size == -2:
            self.world_size = count_accelerators() or DEFAULT_WORLD_SIZE

    @classmethod
    def everyrank_declares(cls, name: str) -> dict[str, Any]:
        company = f"{cls.__module__}.{cls.__qualname__}"
        return {**super().everyrank_declares(name), "fresh": False, "company": company}

    @classmethod
    def backend_str(cls) -> str | None:
        return None

    @classmethod
    def device_type(cls) -> str:
        return "cuda" if torch.cuda.is_available() else "cpu"

    @classmethod
    def opts(cls, high_priority_stream: bool = False) -> Any:
        return None

    @classmethod
    def _init_pg(cls, rank: int, world_size: int, rdvz_file: str) -> None:
        """Open the group, once in each process."""
        os.environ["LOCAL_RANK"] = str(rank)
        dist.init_process_group(
            cls.backend_str(),
            store=dist.FileStore(rdvz_file, world_size),
            rank=rank,
            world_size=world_size,
            pg_options=cls.opts(),
            timeout=cls.timeout,
        )
        cls.pg = dist.group.WORLD

    @classmethod
    def _run_test_given_id(cls, test_id: str, **kwargs: Any) -> None:
        __tracebackhide__ = True
        name = test_id.rpartition(".")[2]
        self = cls(name)
        self.rank, self.world_size = cls.rank, cls.world_size
        set_rng_seed()
        getattr(self, name)(**kwargs)

    def setUp(self) -> None:
        super().setUp()
        self.rank = self.MAIN_PROCESS_RANK
        backend = self.backend_str()
        if backend is not None and not dist.is_backend_available(backend):
            raise unittest.SkipTest(f"needs the backend {backend}, which this torch does not have")
        self._everyrank_parts.started()

    def _everyrank_body(self, set_up: SetUpResult) -> None:
        __tracebackhide__ = True
        from everyrank.rank.context import current_rank

        cls, rank = type(self), current_rank()
        with skips_by_code(TEST_SKIPS):
            cls.rdvz_file = rendezvous_of_class(rank)
            open_for_class(rank, cls)
            cls._run_test_given_id(self.id())


def run_subtests(
    cls_inst: Any,
    subtest_config: dict[str, list[Any]],
    test_fn: Callable[..., Any],
    *test_args: Any,
    **test_kwargs: Any,
) -> None:
    """Call ``test_fn`` with every combination of these keywords, with a barrier after each."""
    for values in itertools.product(*subtest_config.values()):
        keywords = dict(zip(subtest_config, values, strict=True))
        with cls_inst.subTest(**keywords):
            test_fn(*test_args, **test_kwargs, **keywords)
        dist.barrier()
