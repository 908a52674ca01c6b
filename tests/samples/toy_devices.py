"""A type of devices that no machine has: torch knows it as PrivateUse1, and its ranks compute on the CPU.

The machine has the devices TOY-a and TOY-b. What torch asks of ``torch.toy`` is kept for tests to see.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from everyrank.devices.protocol import DeviceType, Gpu
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend


class Toy:
    """Stands for the module ``torch.toy``."""

    current = ""
    seed = allocated = 0

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return bool(self.current)

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        return len(Toys().found())

    def set_device(self, device: str) -> None:
        self.current = device

    def manual_seed_all(self, seed: int) -> None:
        self.seed = seed

    def memory_allocated(self, number: int) -> int:
        return self.allocated if self.current == f"toy:{number}" else 0


class Toys(DeviceType):
    name, variable, backend = "toy", "TOY_VISIBLE_DEVICES", "tccl"
    files = (os.path.abspath("toy-driver"),)

    def found(self) -> tuple[Gpu, ...]:
        there = [Gpu("TOY-a", "a wooden block"), Gpu("TOY-b", "a wooden block")]
        listed = os.environ.get(self.variable)
        return tuple(toy for toy in there if listed is None or toy.uuid in listed.split(","))


def _tccl(store: Any, rank: int, size: int, timeout: Any) -> Any:
    return dist.ProcessGroupGloo(store, rank, size, timeout)


_setup_privateuseone_for_python_backend("toy", Toy())
dist.Backend.register_backend("tccl", _tccl, devices=["cpu", "toy"])
assert torch.device("toy:1").type == "toy"
