"""The GPUs that a world must have."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from everyrank.devices import device_types
from everyrank.devices.protocol import Gpu


@dataclass(frozen=True)
class Needs:
    """The GPUs that a world must have, and how many it would take."""

    least: int = 0
    most: int = 0
    share: float = 1.0  # the share of each GPU
    memory: int = 0
    capability: tuple[int, int] | None = None
    p2p: bool = False
    one_per_rank: bool = False  # for a communicator that refuses to use one GPU for two ranks
    type: str = "cuda"  # the type of device that texts call a GPU

    @property
    def count(self) -> str:
        return f"{self.least} {device_types.find(self.type).title}{'s' if self.least > 1 else ''}"

    @property
    def kind(self) -> str:
        """What each GPU must be; "" if any will do."""
        kinds = []
        if self.capability is not None:
            kinds.append(f"of compute capability {'.'.join(map(str, self.capability))} or more")
        if self.memory:
            kinds.append(f"with {self.memory / 1e9:g} GB")
        return " ".join(kinds)

    def suitable(self, gpus: Sequence[Gpu]) -> list[Gpu]:
        of_type = [gpu for gpu in gpus if gpu.type == self.type]
        return [gpu for gpu in of_type if gpu.memory >= self.memory and gpu.capability >= (self.capability or (0, 0))]

    def choices(self, gpus: Sequence[Gpu]) -> Iterator[tuple[Gpu, ...]]:
        """Yield the sets of these GPUs that meet the needs."""
        suitable = self.suitable(gpus)
        count = min(self.most, len(suitable))
        if count < self.least or not count:
            return
        for choice in itertools.combinations(suitable, count):
            if not self.p2p or all(peer.uuid in gpu.peers for gpu, peer in itertools.permutations(choice, 2)):
                yield choice
