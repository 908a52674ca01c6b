"""The GPUs and the backend that a test asks for, and why the machine cannot give them."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from everyrank.declare import requirements
from everyrank.declare.declaration import Declaration
from everyrank.declare.job import Job
from everyrank.declare.stash import FOUND_GPUS
from everyrank.devices import device_types
from everyrank.devices.protocol import Gpu
from everyrank.model.counts import count
from everyrank.resources.gpus.gpu_leases import GpuLease, GpuLeases
from everyrank.resources.gpus.needs import Needs
from everyrank.resources.gpus.world_gpus import WorldGpus
from everyrank.resources.leases import folder

#: The property of a report with the reason why its test was skipped.
SKIPPED_FOR = "skipped for"


class RunGpus:
    """The GPUs of this run, and what its tests need of them."""

    def __init__(self, leases: GpuLeases) -> None:
        self._leases = leases
        self.on_hosts = False
        """Whether GPUs are those of several hosts, which the launcher hands out."""

    @functools.cache  # noqa: B019 (there is one object in a run)
    def gpus(self, kind: str) -> tuple[Gpu, ...]:
        """Return the GPUs of a type that this process could use at the first call.

        A test may change the environment later.
        """
        return device_types.found(device_types.find(kind))

    def are_here(self, kind: str) -> bool:
        """Return whether this machine is one for GPUs of this type: it has some, or none of another type."""
        return bool(self.gpus(kind)) or not any(self.gpus(other.name) for other in device_types.known())

    def missing(self, job: Job) -> tuple[str, bool]:
        """Return why a test cannot run here, or "", and whether the reason is a lack of GPUs."""
        requirements.check(job.declared, job.size)
        needs = job.needs
        # The launcher says what its hosts do not have.
        reason = requirements.missing_gpus(needs, self.gpus(needs.type)) if needs.least and not self.on_hosts else ""
        if not reason and (job.wants_group or needs.one_per_rank):
            reason = requirements.missing_backend(job.backend)
        return reason, bool(reason and needs.least)

    def backend(self, declared: Declaration, size: int) -> str:
        """Return the backend of a test. NCCL needs a GPU for each rank; gloo takes CUDA tensors, too."""
        if declared.backend is not None:
            return declared.backend
        needs = requirements.needs(declared, size)
        on_gpus = declared.device_type.backend or "gloo"
        if self.on_hosts:
            return on_gpus if needs.least and requirements.one_for_each_rank(needs, size) else "gloo"
        return on_gpus if needs.least and needs.share == 1 and self._count(needs) >= size else "gloo"

    def _count(self, needs: Needs) -> int:
        return min(needs.most, len(needs.suitable(self.gpus(needs.type))))

    def uses_gpus(self, job: Job) -> bool:
        """Return whether a test takes GPUs on this machine."""
        return job.needs.most > 0 and not self.on_hosts and bool(self.gpus(job.needs.type))

    def take(self, job: Job) -> GpuLease | None:
        return self._leases.take(job.needs, self.gpus(job.needs.type)) if job.needs.most else None

    def close(self) -> None:
        self._leases.close()


def device(job: Job, gpus: WorldGpus | None, rank: int) -> str:
    """Return the device of a rank's tensors. A class in torch's style chooses its device itself."""
    if gpus is None or job.declared.gpus_if_any:
        return "cpu"
    return gpus.device(rank)


def visible(gpus: WorldGpus | None, rank: int, forked: bool) -> dict[str, str]:
    """Return which GPUs a rank may see, by their type: those of its world.

    A clean interpreter is left as it is otherwise: the import of the test's file may have used GPUs already.
    """
    none = {kind.name: kind.visible(()) for kind in device_types.known()} if forked else {}
    return none if gpus is None else none | gpus.visible_to(rank)


def start(notify: Any) -> RunGpus:
    """Return the GPUs of a run; ``notify`` prints a line for the user."""
    return RunGpus(GpuLeases(folder(), notify))


# --- the lines at the end of the run ---------------------------------------------------------------


def summary(reports: Iterable[Any]) -> str:
    """Return a line such as ``everyrank skipped 9 tests: 8 (needs 4 GPUs, found 0), 1 (...)``; "" without skips."""
    reasons = Counter(
        str(value)
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == SKIPPED_FOR
    )
    if not reasons:
        return ""
    total = sum(reasons.values())
    listed = ", ".join(f"{number} ({reason})" for reason, number in reasons.most_common())
    return f"everyrank skipped {count(total, 'test')}: {listed}"


def shortage(config: pytest.Config, required: int) -> str:
    """Return why this machine, or the launcher's hosts, do not meet ``--require-gpus``, or ""."""
    number = config.stash.get(FOUND_GPUS, None)
    if number is None:
        number = len(device_types.all_found()) if required else 0
    return f"everyrank: --require-gpus={required}, found {number}: this run is not green" if number < required else ""


def write_summary(terminal: pytest.TerminalReporter, required: int) -> None:
    """Print the lines at the end of the run."""
    if line := summary(terminal.stats.get("skipped", [])):
        terminal.write_line(line)
    if line := shortage(terminal.config, required):
        terminal.write_line(line, red=True)
