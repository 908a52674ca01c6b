"""The port of device types: all that the harness must know of devices such as CUDA's GPUs.

A test names a type by ``device=`` on its mark. Another type than CUDA is a ``DeviceType`` in one module, and a line
under ``everyrank.devices`` in the entry points of its package. ``docs/devices.md`` has an example.
"""

from __future__ import annotations

import abc
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Gpu:
    """A GPU, or a MIG instance of one, or a device of another type."""

    uuid: str  # the same in every process on this machine, and no other device's
    name: str = ""
    memory: int = 0  # bytes
    capability: tuple[int, int] = (0, 0)
    peers: frozenset[str] = frozenset()  # the uuids of GPUs that it reaches without the host
    instances: tuple[Gpu, ...] = field(default=(), repr=False)  # in MIG mode, its instances are used instead of it
    mig_mode: bool = False
    handle: str = ""  # its name in the variable, if that is not the uuid
    type: str = "cuda"  # the name of its type, which ``device_types.found`` notes

    @property
    def is_instance(self) -> bool:
        return self.uuid.startswith("MIG-")

    @property
    def visible_as(self) -> str:
        return self.handle or self.uuid


class DeviceType(abc.ABC):
    """A type of devices, which torch knows by its name: it has a module ``torch.<name>``, such as ``torch.cuda``."""

    name: str
    """The type, as torch names it: ``cuda`` of ``cuda:0``."""
    backend: str | None = None
    """The backend of torch.distributed with a device of its own for each rank; without one, groups are of gloo."""
    files: tuple[str, ...] = ()
    """How the paths of the files begin that its driver opens. An open one is no leak, but then no rank is forked."""

    @property
    @abc.abstractmethod
    def variable(self) -> str:
        """The environment variable that lists the devices that a process may use; an attribute will do."""

    @property
    def title(self) -> str:
        """What texts call one device."""
        return self.name.upper()

    @property
    def titled(self) -> str:
        """The same after its article: an abbreviation is spelled out when it is read."""
        return f"{'an' if self.title[0] in 'AEFHILMNORSX' else 'a'} {self.title}"

    @abc.abstractmethod
    def found(self) -> tuple[Gpu, ...]:
        """Return the devices that this process may use now, without initialising any: ranks are forks of it."""

    def on_this_machine(self) -> int:
        """Return how many devices the driver knows, whether or not torch and this process can use them."""
        return 0

    def visible(self, gpus: Sequence[Gpu]) -> str:
        """Return the value of the variable with which a process sees these devices and no other; none if empty."""
        return ",".join(gpu.visible_as for gpu in gpus)

    def is_initialized(self) -> bool:
        """Return whether this process has used its devices, so that no rank may be forked from it."""
        module = self._module()
        return module is not None and bool(module.is_initialized())

    def bind(self, device: str) -> None:
        """Make this the device of the calling rank, before its default group is opened."""
        self._module().set_device(device)

    def memory(self) -> dict[str, int]:
        """Return the bytes that this process has allocated, by device; nothing before it uses them."""
        if not self.is_initialized():
            return {}
        module = self._module()
        return {f"{self.name}:{number}": module.memory_allocated(number) for number in range(module.device_count())}

    def _module(self) -> Any:
        """Return torch's module for this type; None if torch is not imported, or does not know the type."""
        return getattr(sys.modules.get("torch"), self.name, None)


_UNITS = {"kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "B": 1}


def bytes_of(value: object) -> int:
    """Return the bytes of a number, or of a text such as ``"20GB"``. Raise ValueError for anything else."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str):
        for unit, size in _UNITS.items():
            if value.endswith(unit):
                number = float(value.removesuffix(unit))
                if 0 <= number < float("inf"):
                    return int(number * size)
                break
    raise ValueError(f"not an amount of memory: {value!r}")
