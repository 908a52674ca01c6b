"""The meetings of a world's ranks: ``world.barrier()`` and all that needs every rank, without a process group."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from everyrank.wire.messages import Meet, Met


class Meeting:
    """Holds the ranks that came to a meeting until all are there, or until one of them will never come."""

    def __init__(self, size: int, send: Callable[[int, Met], None]) -> None:
        self._size = size
        self._send = send
        self._came: dict[int, Meet] = {}

    def __bool__(self) -> bool:
        """Whether a rank waits for others."""
        return bool(self._came)

    def come(self, rank: int, meet: Meet, ended: list[int]) -> None:
        """Note that a rank came. ``ended`` are the ranks that have ended their test."""
        self._came[rank] = meet
        if len(self._came) < self._size:
            self.dissolve(ended)
            return
        meets = [self._came[rank] for rank in range(self._size)]
        # Ranks that only look must not release those that wait elsewhere, whose next meetings would be out of step.
        looking = {rank: meet for rank, meet in self._came.items() if meet.looks}
        self._dismiss(
            Met([meet.point for meet in meets], [meet.digest for meet in meets], [meet.text for meet in meets], []),
            looking or self._came,
        )

    def dissolve(self, ended: list[int]) -> None:
        """If a rank has ended its test, it will never come: release the ranks that wait for it."""
        missing = [rank for rank in ended if rank not in self._came]
        if self._came and missing:
            self._dismiss(Met([], [], [], missing), self._came)

    def _dismiss(self, met: Met, leaving: Iterable[int]) -> None:
        for rank in list(leaving):
            del self._came[rank]
            self._send(rank, met)
