"""The worlds of a run that run no test now: kept warm for another one, or forked ahead for the next."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable

import pytest
from everyrank.controller import ending
from everyrank.controller.conversation import Conversation, TalkOptions
from everyrank.controller.cutoff import TimeLimit
from everyrank.controller.launching import Launching
from everyrank.controller.live_world import LiveWorld
from everyrank.controller.warn import warn
from everyrank.declare.job import Job, Key
from everyrank.errors import MisuseError
from everyrank.launch.protocol import Launcher
from everyrank.resources import leases
from everyrank.resources.gpus.gpu_leases import GpuLease
from everyrank.verdict.fates import Fates

#: Idle warm worlds are kept up to this many ranks together.
_IDLE_RANKS = 48


class Pool:
    """The idle worlds of one pytest process. Tests with equal keys may share one."""

    def __init__(self, session: pytest.Session, launching: Launching, talk_options: TalkOptions) -> None:
        self._session = session
        self._launching = launching
        self._talk_options = talk_options
        self._idle: OrderedDict[Key, LiveWorld] = OrderedDict()
        self._spare: LiveWorld | None = None  # for the next test, forked while this one runs

    def close(self) -> None:
        """End every world, in order if possible."""
        try:
            for world in list(self._idle.values()):
                self._dismiss(world)
        finally:
            self._idle.clear()
            if self._spare is not None:
                self._spare.end()

    @property
    def up(self) -> int:
        """Return the number of worlds that are kept or forked ahead, without the one that runs a test."""
        return len(self._idle) + (self._spare is not None)

    @property
    def launcher(self) -> Launcher:
        """The launcher of further worlds. Idle worlds of one that was lost end now."""
        launcher = self._launching.launcher
        for key in [key for key, world in self._idle.items() if world.launcher is not launcher]:
            self._idle.pop(key).end()
        return launcher

    def may_share(self, job: Job, other: Job | None) -> bool:
        """Return whether that test may run in the world of this one."""
        return other is not None and not other.fresh and self.key(other) == self.key(job)

    def key(self, job: Job) -> Key:
        return self._launching.key(job)

    # --- taking and keeping --------------------------------------------------------------------------

    def warm(self, job: Job) -> LiveWorld | None:
        """Take an idle world for this test, if all its ranks still live."""
        launcher = self.launcher
        world = self._idle.pop(self.key(job), None)
        if world is None:
            return None
        launcher.catch_up()
        overdue = world.gpus is not None and world.gpus.is_overdue()
        if overdue or any(seat.gone for seat in world.seats):
            self._dismiss(world)
            return None
        return world

    def take_spare(self, job: Job) -> LiveWorld | None:
        """Take the world that was forked ahead, if it is one for this test and all its ranks still live."""
        launcher, key = self.launcher, self.key(job)
        world, self._spare = self._spare, None
        if world is None:
            return None
        launcher.catch_up()
        if world.launcher is launcher and world.key == key and not any(seat.gone for seat in world.seats):
            return world
        world.end()
        return None

    def keep(self, world: LiveWorld) -> None:
        """Keep a world whose test has ended, and end the oldest if there are too many."""
        self._idle[world.key] = world
        while sum(len(idle.seats) for idle in self._idle.values()) > _IDLE_RANKS and len(self._idle) > 1:
            _, oldest = self._idle.popitem(last=False)
            self._dismiss(oldest)

    # --- starting ------------------------------------------------------------------------------------

    def start(self, job: Job, lease: GpuLease | None = None) -> LiveWorld:
        """Start a world for this test."""
        self._launching.settle()
        if not self._launching.has_room(job):
            self.give_back()
        return self._launching.start(job, lease)

    def start_spare(self, job: Job) -> None:
        """Fork the ranks of the next test while this one runs.

        If that fails, this test is not to blame: the next one tries again, and says why it cannot start.
        """
        # A test does not wait for imports that the next one may need.
        ready = self._spare is None and not self._launching.is_importing
        if ready and self.launcher.forks and job.size <= leases.capacity():
            with contextlib.suppress(OSError, MisuseError):
                self._spare = self.start(job)

    def note_imports(self, fates: Fates, more_worlds: Callable[[], bool]) -> None:
        """Note what the ranks of a test imported, so that the zygote imports it for further ranks.

        If the run will need more worlds, the zygote imports now, while tests go on; otherwise before the next world.
        """
        if self._launching.note_imports(fates):
            if self._spare is not None:
                self._spare.end()  # its ranks would import all that again
                self._spare = None
            if more_worlds():
                self._launching.import_soon()

    # --- ending --------------------------------------------------------------------------------------

    def give_back_if_wanted(self) -> None:
        """Before an item: if others wait for what our idle worlds hold on the launcher's engine, end these worlds."""
        launcher = self._launching.in_use
        if launcher is not None and launcher.is_wanted():
            self.give_back()

    def give_back(self) -> None:
        """End the idle worlds, and give back what they held on the launcher's engine."""
        while self._idle:
            self._dismiss(self._idle.popitem(last=False)[1])
        if (launcher := self._launching.in_use) is not None:
            launcher.give_back()

    def dismiss_with_gpus(self) -> None:
        """End the idle worlds that have GPUs, so that no test waits for these."""
        for key in [key for key, world in self._idle.items() if world.gpus is not None]:
            self._dismiss(self._idle.pop(key))

    def leave(self, talk: Conversation) -> None:
        """End a world after its test, which reports what goes wrong now."""
        ending.leave(talk)
        self._launching.collect_coverage(talk.world)

    def _dismiss(self, world: LiveWorld) -> None:
        """End an idle world, in order if all its ranks still live."""
        if not world.launcher.lost:
            world.launcher.catch_up()
        if any(seat.gone for seat in world.seats):
            world.end()  # it lost a rank between two tests; no test is affected
            return
        talk = Conversation(world, TimeLimit(None, ""), self._talk_options)
        ending.dismiss(talk)
        self._launching.collect_coverage(world)
        for fate in talk.fates.ranks:
            if problem := talk.fates.late.get(fate.rank) or fate.out_of_order:
                # No test can report this any more, but the run must not be green.
                self._session.testsfailed += 1
                warn(
                    self._session.config,
                    f"a wider fixture's teardown failed on rank {fate.rank} when its world ended:\n{problem}",
                )
