"""What one attempt of a job asks of each rank of its world."""

from __future__ import annotations

import os
from dataclasses import dataclass

from everyrank.controller.cutoff import TimeLimit
from everyrank.controller.live_world import LiveWorld
from everyrank.declare import run_gpus
from everyrank.declare.job import Job
from everyrank.model.fault import Plan
from everyrank.model.mutation import SEED, Observe
from everyrank.model.ranks import rank_seed
from everyrank.verdict.repeat import lasting_id
from everyrank.wire.messages import Order


@dataclass(frozen=True)
class Asked:
    """What ``--mutate`` asks of one attempt, or a sweep of faults."""

    watch: Observe | None = None
    seconds: float | None = None
    plan: Plan | None = None
    source: str = "--mutate"  # of the deadline

    @property
    def may_fail(self) -> bool:
        """Whether a failure is expected, and no reason to end a world whose ranks are as they were."""
        return self.watch is not None and self.watch.mutant is not None

    def limit(self, usual: TimeLimit) -> TimeLimit:
        """Return the deadline, if the usual one is this."""
        if self.seconds is None or (usual.seconds is not None and usual.seconds <= self.seconds):
            return usual
        return TimeLimit(self.seconds, self.source)


@dataclass(frozen=True)
class Attempt:
    """One attempt of a job on a world."""

    number: int
    """Among all attempts of the run."""
    job: Job
    following: Job | None
    """The next test of the same world: fixtures that both have stay up."""
    keep: bool
    """Whether the world may serve another test."""
    asked: Asked

    def orders(self, world: LiveWorld, folder: str, meet_at: tuple[str, int], debug_rank: int | None) -> list[Order]:
        """Return the order for each rank."""
        job, following, watch = self.job, self.following, self.asked.watch
        one_seed = watch is not None and watch.mutant is not None and watch.mutant.way == SEED
        gpus, named, locations = world.gpus, lasting_id(job.item), world.locations()
        shared = world.launcher.hosts.share_folder(world.seats)
        return [
            Order(
                number=self.number,
                nodeid=job.nodeid,
                occurrence=job.occurrence,
                index=job.index,
                next_nodeid=following.nodeid if following is not None else None,
                next_index=following.index if following is not None else -1,
                rank=rank,
                size=job.size,
                backend=job.backend,
                device=run_gpus.device(job, gpus, rank),
                visible=run_gpus.visible(gpus, rank, world.launcher.forks),
                seed=rank_seed(named, job.seed, 0 if one_seed else rank),
                folder=os.path.join(world.launcher.hosts.folder_of(world.seats[rank]), folder),
                shared=shared,
                address=meet_at[0],
                port=meet_at[1],
                keep=self.keep,
                group=job.wants_group,
                leaks=job.leaks,
                debug_rank=debug_rank,
                local_rank=locations[rank].rank,
                local_size=locations[rank].size,
                host=locations[rank].host,
                hosts=locations[rank].hosts,
                watch=watch,
                plan=self.asked.plan,
            )
            for rank in range(job.size)
        ]
