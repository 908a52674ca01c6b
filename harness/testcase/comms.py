"""Test cases that open a group around each test: sharded tensors, DTensor, FSDP."""

from __future__ import annotations

import functools
import unittest
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.rpc as torch_rpc
from everyrank.model.counts import count
from everyrank.rpc.agents import LOCAL_TRANSPORTS
from everyrank.testcase.multi_process import MultiProcContinuousTest, MultiProcessTestCase, run_subtests
from everyrank.testcase.skips import count_accelerators
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

rpc: Any = torch_rpc

TEST_GPU_NUM = 4
_ON_GPUS = ("nccl", "xccl", "hccl")


def _device_type() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _number_of_devices() -> int:
    accelerators = count_accelerators()
    return min(4, accelerators) if accelerators > 1 else 4


NUM_DEVICES = _number_of_devices()
DEVICE_TYPE = _device_type()
DEVICE_COUNT = count_accelerators() or 1


def _need_gpus(gpus: int, backend: str | None) -> None:
    if any(name in (backend or "") for name in _ON_GPUS) and count_accelerators() < gpus:
        raise unittest.SkipTest(f"needs {count(gpus, 'GPU')}, found {count_accelerators()}")


class ShardedTensorTestBase(MultiProcessTestCase):
    """Runs tests with a group, and with RPC agents if ``with_comms`` starts them."""

    @property
    def world_size(self) -> int:
        return TEST_GPU_NUM

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()

    def init_pg(self, backend: str = "nccl") -> None:
        dist.init_process_group(
            backend, world_size=self.world_size, rank=self.rank, init_method=f"file://{self.file_name}"
        )
        if backend == "nccl":
            torch.cuda.set_device(self.rank)

    def init_rpc(self) -> None:
        options = rpc.TensorPipeRpcBackendOptions(
            # RPC has its own file: a store deletes its file when its last user ends.
            init_method=f"file://{self.file_name}.rpc",
            _transports=list(LOCAL_TRANSPORTS),
            _channels=["basic"] if not torch.cuda.is_available() else None,
        )
        if count_accelerators() >= self.world_size:
            for rank in range(self.world_size):
                options.set_device_map(f"worker{rank}", {self.rank: rank})
        rpc.init_rpc(
            f"worker{self.rank}",
            # After an import of the faulty agent, torch's default is not a backend for it (pytorch#104620).
            backend=rpc.backend_registry.BackendType.TENSORPIPE,
            rank=self.rank,
            world_size=self.world_size,
            rpc_backend_options=options,
        )

    def init_comms(self, init_rpc: bool = True, backend: str = "nccl") -> None:
        if init_rpc:
            self.init_rpc()
        self.init_pg(backend=backend)

    def destroy_comms(self, destroy_rpc: bool = True) -> None:
        dist.barrier()
        if destroy_rpc:
            rpc.shutdown()
        dist.destroy_process_group()

    def assert_sharded_tensor_equal(self, st1: Any, st2: Any) -> None:
        """Fail unless all shards and all metadata are equal."""
        __tracebackhide__ = True
        shards1, shards2 = st1.local_shards(), st2.local_shards()
        self.assertEqual(len(shards1), len(shards2))
        for shard1, shard2 in zip(shards1, shards2, strict=True):
            self.assertEqual(shard1.tensor, shard2.tensor)
            self.assertEqual(shard1.metadata, shard2.metadata)
        self.assertEqual(st1.metadata(), st2.metadata())
        self.assertEqual(st1.sharding_spec(), st2.sharding_spec())
        self.assertEqual(len(st1.remote_shards()), len(st2.remote_shards()))


class _OnMesh:
    """The common base of test cases for DTensor."""

    world_size: int
    rank: int

    @property
    def device_type(self) -> str:
        return "cuda" if count_accelerators() >= self.world_size and torch.cuda.is_available() else "cpu"

    def build_device_mesh(self) -> DeviceMesh:
        return init_device_mesh(self.device_type, (self.world_size,))

    def init_manual_seed_for_rank(self) -> None:
        torch.manual_seed(self.rank)

    def run_subtests(self, *arguments: Any, **keywords: Any) -> None:
        run_subtests(self, *arguments, **keywords)


class DTensorTestBase(_OnMesh, MultiProcessTestCase):
    """Runs each test in new processes; ``with_comms`` opens the group."""

    @property
    def world_size(self) -> int:  # type: ignore[override]
        return NUM_DEVICES

    @property
    def backend(self) -> str:
        return "nccl" if self.device_type == "cuda" else "gloo"

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()

    def init_pg(self, eager_init: bool = False, backend: str | None = None) -> None:
        backend = backend or self.backend
        _need_gpus(self.world_size, backend)
        device = None
        if "nccl" in backend:
            torch.cuda.set_device(self.rank)
            device = torch.device(f"{self.device_type}:{self.rank}") if eager_init else None
        dist.init_process_group(
            backend,
            world_size=self.world_size,
            rank=self.rank,
            init_method=f"file://{self.file_name}",
            device_id=device,
        )

    def destroy_pg(self, device_id: int | None = None) -> None:
        """Destroy the group after a barrier."""
        if self.device_type == "cpu":
            dist.barrier()
        else:
            dist.barrier(device_ids=[torch.cuda.current_device() if device_id is None else device_id])
        dist.destroy_process_group()


class DTensorContinuousTestBase(_OnMesh, MultiProcContinuousTest):  # type: ignore[misc]
    """Runs all tests of a class in the same processes and group."""

    @classmethod
    def backend_str(cls) -> str:
        return "nccl" if torch.cuda.is_available() else "gloo"

    @classmethod
    def _init_pg(cls, rank: int, world_size: int, rdvz_file: str) -> None:
        _need_gpus(world_size, cls.backend_str())
        if torch.cuda.is_available():
            torch.cuda.set_device(rank)
        super()._init_pg(rank, world_size, rdvz_file)


def with_comms(
    func: Any = None,
    init_rpc: bool = True,
    backend: str | None = None,
    eager_init: Any = False,
) -> Any:
    """Open a group around a method, and RPC agents if it is one of ShardedTensorTestBase.

    torch has two decorators of this name; the class of the method decides which behaviour applies.
    """
    if isinstance(func, bool):
        func, eager_init = None, func
    if callable(eager_init):
        func, eager_init = eager_init, False
    if func is None:
        return functools.partial(with_comms, init_rpc=init_rpc, backend=backend, eager_init=eager_init)
    method: Callable[..., Any] = func

    @functools.wraps(method)
    def wrapped(self: Any, *arguments: Any, **keywords: Any) -> None:
        __tracebackhide__ = True
        if hasattr(self, "init_comms"):
            group_backend = backend or "nccl"
            _need_gpus(self.world_size, group_backend)
            self.init_comms(init_rpc=init_rpc, backend=group_backend)
            method(self, *arguments, **keywords)
            self.destroy_comms(destroy_rpc=init_rpc)
        elif hasattr(self, "init_pg"):
            self.init_pg(eager_init, backend)
            method(self, *arguments, **keywords)
            self.destroy_pg()
        else:
            method(self, *arguments, **keywords)

    return wrapped


# --- FSDP ---------------------------------------------------------------------------------------------


class FSDPTest(MultiProcessTestCase):
    """Runs each test with a rank for each GPU and an open default group."""

    @property
    def world_size(self) -> int:
        return DEVICE_COUNT

    @property
    def process_group(self) -> Any:
        return dist.group.WORLD

    @property
    def init_method(self) -> str:
        return f"file://{self.file_name}"

    @property
    def destroy_pg_upon_exit(self) -> bool:
        return False

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()

    def run_subtests(self, *arguments: Any, **keywords: Any) -> None:
        run_subtests(self, *arguments, **keywords)

    @classmethod
    def _run(cls, rank: int, test_name: str, file_name: str, parent_pipe: Any, **kwargs: Any) -> None:
        __tracebackhide__ = True
        self = cls(test_name)
        self.rank, self.file_name = rank, file_name
        if count_accelerators() < self.world_size:
            raise unittest.SkipTest(f"needs {count(self.world_size, 'GPU')}, found {count_accelerators()}")
        dist.init_process_group("nccl", init_method=self.init_method, world_size=self.world_size, rank=rank)
        torch.cuda.set_device(rank)
        dist.barrier(device_ids=[rank])
        self.run_test(test_name, parent_pipe)
        dist.barrier(device_ids=[rank])
        dist.destroy_process_group()
