"""Run a job on a world: a warm one, one that was forked ahead, or a new one."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import pytest
from everyrank.controller import ending
from everyrank.controller.census import Census
from everyrank.controller.conversation import Conversation, TalkOptions
from everyrank.controller.cutoff import TimeLimit
from everyrank.controller.interrupts import Interrupts
from everyrank.controller.jobs import Jobs
from everyrank.controller.kept import why_not_kept
from everyrank.controller.live_world import LiveWorld
from everyrank.controller.orders import Asked, Attempt
from everyrank.controller.pool import Pool
from everyrank.controller.watch import Watch
from everyrank.controller.witnesses import Witnesses
from everyrank.declare.job import Job
from everyrank.declare.run_gpus import RunGpus
from everyrank.declare.stash import TIMEOUT
from everyrank.errors import MisuseError
from everyrank.model.fault import Plan
from everyrank.model.mutation import Observe
from everyrank.options import Options
from everyrank.resources import holders
from everyrank.resources.gpus.gpu_leases import GpuLease
from everyrank.resources.leases import Leases, cores
from everyrank.verdict.fates import Fates
from everyrank.verdict.report import ReportContext
from everyrank.verdict.rules import Verdict, judge
from everyrank.wire.messages import Order

_GOOD = ("passed", "skipped", "xfailed", "xpassed")


class Attempts:
    """Gives each job a world, the GPUs and the slots that it needs, and keeps the world for the next one."""

    def __init__(
        self,
        session: pytest.Session,
        options: Options,
        jobs: Jobs,
        pool: Pool,
        gpus: RunGpus,
        leases: Leases,
        interrupts: Interrupts,
        talk_options: TalkOptions,
    ) -> None:
        self._session = session
        self._options = options
        self._jobs = jobs
        self._pool = pool
        self._run_gpus = gpus
        self._leases = leases
        self._interrupts = interrupts
        self._tests = 0
        self._last_destroyed_group = False  # whether the ranks of the last test destroyed their group at its end
        self._talk_options = talk_options
        option = session.config.getoption
        self._setup_only = bool(option("setuponly", False))
        self._debugging = bool(option("usepdb", False) or option("trace", False))

    def run(
        self, job: Job, following: Job | None, watch: Observe | None = None
    ) -> tuple[Verdict, Fates, ReportContext]:
        """Run a test and judge it; ``following`` is the next test. Raise OSError or MisuseError without a world."""
        faults = Plan(counts=job.swept.point) if job.swept is not None else job.plan if job.declared.faults else None
        asked = Asked(watch, plan=faults)
        verdict, fates, served = self._on_a_world(job, following, asked)
        alone = False
        unsure = served and verdict.outcome not in _GOOD and not (fates.launcher_lost or fates.interrupted)
        if unsure and self._options.run_alone and not self._debugging:
            # If no world can be started any more, a host that ranks ran on is lost, and the verdict stands.
            with contextlib.suppress(OSError, MisuseError):
                again, _ = self._attempt(job, following, None, keep=False, asked=replace(asked, watch=None))
                alone = again.outcome in _GOOD
        return verdict, fates, ReportContext(job, served, alone)

    def run_changed(self, job: Job, watch: Observe, seconds: float) -> tuple[Verdict, Fates]:
        """Run a test that was green once more, with one of its collectives changed. It is expected to fail."""
        return self._on_a_world(job, job, Asked(watch, seconds))[:2]

    def run_point(
        self, job: Job, following: Job | None, plan: Plan, seconds: float, last: bool
    ) -> tuple[Verdict, Fates]:
        """Run a test that was green without a fault once more, with one; ``last``: that of its last point."""
        asked = Asked(None, seconds, plan, "of a sweep of faults")
        return self._on_a_world(job, following if last else job, asked)[:2]

    def _on_a_world(self, job: Job, following: Job | None, asked: Asked) -> tuple[Verdict, Fates, tuple[str, ...]]:
        """Run a test on a warm world or a new one. Return its verdict, and the tests that its world ran before."""
        warm = None if job.fresh else self._pool.warm(job)
        served = tuple(warm.served) if warm else ()
        ready = warm or self._pool.take_spare(job)
        keep = not job.fresh and not (asked.plan is not None and asked.plan.breaks_the_world)
        verdict, fates = self._attempt(job, following, ready, keep=keep, asked=asked)
        lost_before = ready is not None and (fates.broken_before or not fates.began)
        if (lost_before or (fates.launcher_lost and not fates.began)) and not fates.interrupted:
            # An earlier test broke this world; or the keeper was killed, which may be noticed late. This test gets a
            # new world. A rank that ended after its order, before it began, counts: another rank may have ended it.
            served = ()
            verdict, fates = self._attempt(job, following, None, keep=keep, asked=asked)
        return verdict, fates, served

    def _attempt(
        self, job: Job, following: Job | None, ready: LiveWorld | None, keep: bool, asked: Asked | None = None
    ) -> tuple[Verdict, Fates]:
        asked = asked or Asked()
        with self._gpus_for(job, ready) as lease, self._slots_for(job) as waited:
            world = ready or self._pool.start(job, lease)
            keep = keep and (world.gpus is None or self._pool.may_share(job, following))
            with _address_of_rank_0(world) as meet_at:
                folder = f"test-{self._tests}"
                self._tests += 1
                # pytest does not tear down a test that is to follow itself: its wider fixtures end with each run.
                shares = keep and following not in (None, job) and self._pool.may_share(job, following)
                attempt = Attempt(self._tests, job, following if shares else None, keep, asked)
                orders = attempt.orders(world, folder, meet_at, self._options.pdb_rank)
                talk = self._converse(
                    world, asked.limit(self._limit(job)), orders if world.launcher.same_host else []
                )
                try:
                    fates = self._watch(talk, orders, job, following)
                    fates.waited, fates.plan, fates.setup_only = waited, asked.plan, self._setup_only
                    self._pool.note_imports(fates, lambda: self._more_worlds_follow(job))
                    verdict = judge(fates)
                    if keep and _may_be_kept(talk, verdict, asked.may_fail):
                        world.served.append(job.nodeid)
                        self._pool.keep(world)
                    else:
                        self._pool.leave(talk)
                finally:
                    world.launcher.hosts.remove_folder(folder, world.seats)
                return judge(fates), fates

    def _watch(self, talk: Conversation, orders: list[Order], job: Job, following: Job | None) -> Fates:
        """Watch the test, and fork the ranks of the next one meanwhile.

        On fewer cores than ranks, forks slow the test. If the ranks of the last test destroyed their group, those of
        this one probably do so too, and sleep then: the forks wait for that time. Otherwise they begin at once.
        """
        start_spare = functools.partial(self._start_spare, job, following)
        waits = self._last_destroyed_group and job.size > cores()
        if not waits:
            start_spare()
        watch = Watch(
            talk,
            orders,
            self._interrupts,
            while_asleep=start_spare if waits else None,
            report=lambda text: holders.print_line(self._session.config, f"{job.nodeid}: {text}"),
        )
        fates = watch.run()
        self._last_destroyed_group = talk.destroys_group
        return fates

    @contextlib.contextmanager
    def _gpus_for(self, job: Job, ready: LiveWorld | None) -> Iterator[GpuLease | None]:
        """Lease GPUs for a new world; one that is ready has its own.

        The lease ends with the world. While this process waits for GPUs, it holds none.
        """
        lease = None
        if ready is None and self._run_gpus.uses_gpus(job):
            self._pool.dismiss_with_gpus()
            lease = self._run_gpus.take(job)
        try:
            yield lease
        except BaseException:
            if lease is not None:
                lease.close()
            raise

    def _slots_for(self, job: Job) -> AbstractContextManager[str]:
        """Hold slots of this machine for the ranks of a test, unless they run elsewhere."""
        if self._pool.launcher.hosts.several:
            return contextlib.nullcontext("")
        return self._leases.held(job.size, job.nodeid)

    def _converse(self, world: LiveWorld, limit: TimeLimit, asked: Sequence[Order]) -> Conversation:
        """Return the conversation with a world, and with the witnesses of the ranks that have these orders."""
        census, witnesses = Census.for_orders(asked), Witnesses.for_orders(asked)
        return Conversation(world, limit, self._talk_options, census, witnesses)

    def _limit(self, job: Job) -> TimeLimit:
        """Return the deadline and its source. While a person debugs, there is none."""
        if self._debugging:
            return TimeLimit(None, "")
        if job.declared.timeout is not None:
            return TimeLimit(job.declared.timeout, job.declared.timeout_from)
        if TIMEOUT in job.item.stash:  # pytest-timeout sets it when the test's turn has come
            return TimeLimit(job.item.stash[TIMEOUT], "pytest-timeout")
        return TimeLimit(self._options.timeout, "everyrank_timeout")

    def _more_worlds_follow(self, job: Job) -> bool:
        """Return whether a later test needs another world than this one."""
        return any(not self._pool.may_share(job, later) for later in self._jobs.after(job))

    def _start_spare(self, job: Job, following: Job | None) -> None:
        """Fork the next test's ranks while this test waits for its own, if that test will need new processes."""
        if following is None or self._debugging or self._run_gpus.uses_gpus(following):
            return  # a world with GPUs is started when it has them
        spent = job.spends_its_world and self._pool.key(job) == self._pool.key(following)
        if spent or following.fresh:
            self._pool.start_spare(following)


@contextlib.contextmanager
def _address_of_rank_0(world: LiveWorld) -> Iterator[tuple[str, int]]:
    """Reserve the address at which the ranks of a world find rank 0. The world ends if its test could not be run."""
    try:
        with world.launcher.hosts.rendezvous(world.seats[0]) as address:
            yield address
    except BaseException:
        world.end()
        raise


def _may_be_kept(talk: Conversation, verdict: Verdict, may_fail: bool) -> bool:
    """Return whether the world may serve another test; if not, note the reason in its fates."""
    fates = talk.fates
    fates.not_kept = why_not_kept(verdict, fates, may_fail) or (
        "a rank ended after its record" if talk.world.broken else ""
    )
    if not fates.not_kept and not ending.close_up(talk):
        late = {fate.rank: fate.out_of_order for fate in fates.ranks if fate.out_of_order}
        fates.not_kept = "; ".join(f"rank {rank} {reason}" for rank, reason in late.items()) or "a rank left"
    return not fates.not_kept
