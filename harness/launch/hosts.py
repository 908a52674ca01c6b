"""Where the ranks of a launcher run. As it stands here: all on this host, under the paths that it has."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from everyrank.launch.rendezvous import reserved_port
from everyrank.resources.gpus.needs import Needs
from everyrank.resources.gpus.world_gpus import WorldGpus

if TYPE_CHECKING:
    from everyrank.launch.protocol import Seat


class Hosts:
    """The hosts of a launcher's ranks: their folders, their ports and their GPUs."""

    several = False
    """Whether the ranks of one world may run on several hosts. Then this machine's GPUs and slots are not leased."""
    share_files = True
    """Whether all ranks see this host's files, under the same paths."""
    working_dir = ""
    """The folder that the engine has copied to the host of each rank, which starts in the copy."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def folder_of(self, seat: Seat) -> str:
        """Return the run's folder on the host of this rank."""
        return self._folder

    def share_folder(self, seats: Sequence[Seat]) -> bool:
        """Return whether the run's folder is one and the same for these ranks."""
        return True

    def remove_folder(self, name: str, seats: Sequence[Seat]) -> None:
        """Remove a folder in the run's folder, of a test that these ranks have run."""
        shutil.rmtree(os.path.join(self._folder, name), ignore_errors=True)

    def rendezvous(self, first: Seat) -> AbstractContextManager[tuple[str, int]]:
        """Reserve, for one test, the address and the port at which its ranks find rank 0, which has this seat."""
        return reserved_port()

    def gpus_of(self, seats: Sequence[Seat], needs: Needs) -> WorldGpus:
        """Return the GPUs that these ranks, started with such needs, have on their hosts."""
        raise NotImplementedError("only if worlds may run on several hosts")

    def count_gpus(self) -> int:
        """Return how many GPUs the hosts have for ranks, if worlds may run on several."""
        return 0
