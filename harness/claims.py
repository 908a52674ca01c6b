"""What a test asks of the machine: the GPUs and the backend of its world, and why it cannot have them."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from everyrank import devices, skips
from everyrank.declaration import Declaration
from everyrank.devices import Gpu
from everyrank.gpus import GpuLease, GpuLeases
from everyrank.leases import folder
from everyrank.skips import Needs

#: The property of a report that says what its test was skipped for.
SKIPPED_FOR = "skipped for"


class Claims:
    """The GPUs of this run, and what its tests claim of them."""

    def __init__(self, leases: GpuLeases) -> None:
        self._leases = leases

    @functools.cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """What this process could use when it was first asked; a test may change the environment later."""
        return devices.found()

    def missing(self, declared: Declaration, size: int, group: bool) -> tuple[str, bool]:
        """Why a test cannot be run here, or nothing; and whether that is for want of GPUs."""
        skips.check(declared, size)
        needs = skips.needs(declared, size)
        reason = skips.missing_gpus(needs, self.gpus) if needs.least else ""
        if not reason and (group or needs.one_a_rank):
            reason = skips.missing_backend(self.backend(declared, size))
        return reason, bool(reason and needs.least)

    def backend(self, declared: Declaration, size: int) -> str:
        """NCCL takes one GPU a rank; with fewer, gloo carries CUDA tensors too."""
        if declared.backend is not None:
            return declared.backend
        needs = skips.needs(declared, size)
        return "nccl" if needs.least and needs.share == 1 and self._count(needs) >= size else "gloo"

    def _count(self, needs: Needs) -> int:
        return min(needs.most, len(needs.suitable(self.gpus)))

    def take(self, declared: Declaration, size: int) -> GpuLease | None:
        needs = skips.needs(declared, size)
        return self._leases.take(needs, self.gpus) if needs.most else None

    def close(self) -> None:
        self._leases.close()


def device(declared: Declaration, lease: GpuLease | None, rank: int) -> str:
    """Where a rank's tensors belong. A class of torch's style says that itself, whatever GPUs there are."""
    if lease is None or declared.gpus_if_any:
        return "cpu"
    return lease.device(rank)


def visible(lease: GpuLease | None, rank: int, forked: bool) -> str | None:
    """What a rank may see: its world's GPUs, and none that are not leased. A clean interpreter has imported the
    test's file by then, and with it whatever that does with GPUs."""
    if lease is not None:
        return lease.visible_to(rank)
    return "" if forked else None


def start(tell: Any) -> Claims:
    return Claims(GpuLeases(folder(), tell))


# --- what is told at the end -----------------------------------------------------------------------


def summary(reports: Iterable[Any]) -> str:
    """``everyrank skipped 9 tests: 8 (needs 4 GPUs, found 0), 1 (...)``; nothing, if none was."""
    wants = Counter(
        str(value)
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == SKIPPED_FOR
    )
    if not wants:
        return ""
    total = sum(wants.values())
    told = ", ".join(f"{count} ({want})" for want, count in wants.most_common())
    return f"everyrank skipped {total} test{'s' if total > 1 else ''}: {told}"


def shortage(required: int) -> str:
    """What ``--require-gpus`` has to say of this machine, or nothing."""
    found = skips.found_gpus() if required else 0
    return f"everyrank: --require-gpus={required}, found {found}: this run is not green" if found < required else ""


def write_summary(terminal: pytest.TerminalReporter, required: int) -> None:
    """The lines for the end of the run."""
    if line := summary(terminal.stats.get("skipped", [])):
        terminal.write_line(line)
    if line := shortage(required):
        terminal.write_line(line, red=True)
