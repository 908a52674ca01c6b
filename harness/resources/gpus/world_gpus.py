"""The GPUs of a world: leased here, or on the hosts of its ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from everyrank.devices import device_types
from everyrank.devices.protocol import Gpu


class WorldGpus(Protocol):
    """The GPUs of a world, as long as it lives."""

    @property
    def fds(self) -> list[int]:
        """The descriptors that hold them, for all ranks."""

    def visible_to(self, rank: int) -> dict[str, str]:
        """Return the GPUs that a rank sees, as their type's variable lists them, by the type."""

    def device(self, rank: int) -> str:
        """Return the device of a rank."""

    def is_overdue(self) -> bool:
        """Return whether an idle world should release its GPUs, since another test has waited long enough."""

    def close(self) -> None:
        """Release them: the world has ended."""


@dataclass(frozen=True)
class GpusOfHost:
    """GPUs of one host, of which each of the ranks there has one, in their order."""

    gpus: Sequence[Gpu]

    def visible_to(self, rank: int) -> dict[str, str]:
        """Return all of them, but only one MIG instance, since CUDA takes no more."""
        gpus = [self.gpus[rank % len(self.gpus)]] if self._has_instances else self.gpus
        return {self._type: device_types.find(self._type).visible(gpus)}

    def device(self, rank: int) -> str:
        return f"{self._type}:{0 if self._has_instances else rank % len(self.gpus)}"

    @property
    def _type(self) -> str:
        return self.gpus[0].type

    @property
    def _has_instances(self) -> bool:
        return any(gpu.is_instance for gpu in self.gpus)


class GpusOnHosts:
    """The GPUs of a world on several hosts. They belong to the hosts' processes, so there is nothing to release."""

    def __init__(self, ranks: Sequence[tuple[GpusOfHost, int]]) -> None:
        self._ranks = ranks
        """For each rank: the GPUs of its host, and its number among the ranks there."""

    @property
    def fds(self) -> list[int]:
        return []

    def visible_to(self, rank: int) -> dict[str, str]:
        here, local = self._ranks[rank]
        return here.visible_to(local)

    def device(self, rank: int) -> str:
        here, local = self._ranks[rank]
        return here.device(local)

    def is_overdue(self) -> bool:
        return False

    def close(self) -> None:
        pass
