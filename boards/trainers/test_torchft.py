"""torchft: DDP whose gradients its Manager averages, and LocalSGD and DiLoCo, which average models after each step.

Each rank is a replica group of its own.
"""

from __future__ import annotations

import gc
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

import pytest
import torch
import torch.distributed as dist
from everyrank.fixtures.optimizers import TABLE
from everyrank.suites import Lack, Subject, conformance
from everyrank.suites.trainer.subjects.common import Adapter
from torch import nn

pytest.importorskip("torchft", reason="pip install torchft-nightly")
from torchft.checkpointing.pg_transport import PGTransport
from torchft.coordination import LighthouseServer, ManagerServer
from torchft.ddp import DistributedDataParallel
from torchft.local_sgd import DiLoCo, LocalSGD
from torchft.manager import Manager
from torchft.optim import OptimizerWrapper
from torchft.process_group import ProcessGroupGloo

#: tokio has a pair of sockets and its pollers, and torchft two threads, for as long as the process lives.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.* left .*(TimeoutManager|_watchdog_loop|UNIX|eventpoll|pipe):everyrank.LeakWarning"
)

HOST = "127.0.0.1"

#: What the trainers of a test have started. It ends with the test.
STARTED = ExitStack()


@pytest.fixture(autouse=True)
def servers() -> Iterator[None]:
    with STARTED:
        yield
    gc.collect()


def on_loopback(**options: Any) -> Any:
    """Return the server of a manager, which would listen on all addresses."""
    return ManagerServer(**{**options, "bind": f"{HOST}:0"})


def lighthouse() -> str:
    """Start a lighthouse on rank 0, and return its address."""
    address = [""]
    if dist.get_rank() == 0:
        server = LighthouseServer(bind=f"{HOST}:0", min_replicas=dist.get_world_size(), quorum_tick_ms=10)
        STARTED.callback(server.shutdown)
        address = [f"http://{HOST}:{urlsplit(server.address()).port}"]
    dist.broadcast_object_list(address)
    return address[0]


def manager(trainer: Adapter, init_sync: bool) -> Manager:
    """Return the manager of this rank. A step that it would skip, as something has failed, raises."""
    door = socket.create_server((HOST, 0))
    port = door.getsockname()[1]
    store = dist.TCPStore(HOST, port, is_master=True, wait_for_workers=False, master_listen_fd=door.detach())
    STARTED.callback(lambda: store)  # the store listens until then
    group = ProcessGroupGloo()
    STARTED.callback(group.shutdown)
    with mock.patch("torchft.manager.ManagerServer", on_loopback):
        manager = Manager(
            pg=group,
            load_state_dict=trainer.load_state_dict,
            state_dict=trainer.state_dict,
            min_replica_size=dist.get_world_size(),
            use_async_quorum=False,
            init_sync=init_sync,
            max_retries=0,
            rank=0,
            world_size=1,
            replica_id=f"rank{dist.get_rank()}",
            store_addr=HOST,
            store_port=port,
            lighthouse_addr=lighthouse(),
            hostname=HOST,
            checkpoint_transport=PGTransport(group, timedelta(seconds=60), torch.device("cpu")),
        )
    dist.barrier()  # the lighthouse ends with rank 0's test
    STARTED.callback(manager.shutdown)
    STARTED.callback(vars(trainer).clear)  # DDP's reducer holds the manager, which holds it: no collector sees that
    return manager


class Ddp(Adapter):
    """The first quorum gives all ranks the state of one."""

    def wrap(self, model: nn.Module) -> Any:
        self.manager = manager(self, init_sync=True)
        return DistributedDataParallel(self.manager, model)

    def optimize(self, *args: Any) -> Any:
        return OptimizerWrapper(self.manager, super().optimize(*args))

    def step(self, *batches: Any, max_norm: float | None = None) -> Any:
        self.optimizer.zero_grad()
        return super().step(*batches, max_norm=max_norm)

    def update(self, closure: Callable[[], torch.Tensor]) -> Any:
        loss = closure()
        self.optimizer.step()
        return loss

    def unsynced(self) -> Any:
        return self.wrapped.no_sync()


NOT_LINEAR = Lack(NotImplementedError, "a mean of models is a step by the mean gradient for SGD alone")
#: Cases of another optimizer, by its name, and those of Adam without it.
OF_OTHERS = [f"*[{row.name}-*]" for row in TABLE if row.optimizer is not torch.optim.SGD]
OF_ADAM = ["equal[fp32-*]", "state.in-order[*]", "state.round-trip[groups-*]"]
OF_ADAM += [f"state.inert[{when}-*]" for when in ("fresh", "between", "always")]


class Local(Adapter):
    """LocalSGD that averages after each step."""

    def wrap(self, model: nn.Module) -> Any:
        self.manager = manager(self, init_sync=False)
        return model

    def optimize(self, optimizer_class: Callable[..., Any], *args: Any) -> Any:
        if not issubclass(optimizer_class, torch.optim.SGD):
            raise NotImplementedError(NOT_LINEAR.reason)
        optimizer = super().optimize(optimizer_class, *args)
        STARTED.enter_context(self.averaging(optimizer))
        return optimizer

    def step(self, *batches: Any) -> Any:
        return super().step(*batches)  # no rank has the norm of the whole gradient

    def averaging(self, optimizer: Any) -> Any:
        return LocalSGD(self.manager, self.model, optimizer, sync_every=1)


class Outer(Local):
    """DiLoCo after each step: an outer SGD with a rate of 1 takes the mean of the models."""

    def averaging(self, optimizer: Any) -> Any:
        outer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        return DiLoCo(self.manager, [self.model], optimizer, outer, sync_every=1)


#: torchft's own: its logger, and what goes over the wire from one rank to another.
WARNS = (
    "ignore:The 'warn' method is deprecated:DeprecationWarning",
    "ignore:The given buffer is not writable:UserWarning",
    "ignore:.*isinstance\\(treespec, LeafSpec\\).* is deprecated:FutureWarning",
)

DDP = Subject(
    "torchft.ddp",
    contract="trainer",
    build=Ddp,
    lacks=["closures", "owns"],
    known=["torch:ddp", "torchft_ddp.toml"],
    warns=WARNS,
    package="torchft-nightly",
)
LOCAL = Subject(
    "torchft.local_sgd",
    contract="trainer",
    build=Local,
    declares=frozenset({"same-graph", "trusts-init", "trusts-order"}),
    lacks=["clipping", "owns", dict.fromkeys([*OF_OTHERS, *OF_ADAM], NOT_LINEAR)],
    known="torchft_local_sgd.toml",
    warns=WARNS,
    package="torchft-nightly",
)
OUTER = replace(LOCAL, name="torchft.diloco", build=Outer, known="torchft_diloco.toml")


@conformance(DDP, LOCAL, OUTER)
def test_torchft(case: Any) -> None:
    case.run()
