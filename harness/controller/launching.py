"""The launcher of a run: it is found, used, and replaced once if it is lost."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import pytest
from everyrank.controller.live_world import LiveWorld
from everyrank.controller.preload import Preloading
from everyrank.controller.warn import warn
from everyrank.declare import requirements
from everyrank.declare.job import Job, Key
from everyrank.devices import device_types
from everyrank.errors import MisuseError
from everyrank.launch import launchers, native, spawn
from everyrank.launch.limits import advice
from everyrank.launch.protocol import CannotLaunch, LaunchContext, Launcher, Seat, Shape
from everyrank.options import Options
from everyrank.rank import coverage
from everyrank.resources import holders
from everyrank.resources.gpus.gpu_leases import GpuLease
from everyrank.resources.gpus.world_gpus import WorldGpus
from everyrank.verdict.fates import Fates
from everyrank.wire.channel import Closed


class Launching:
    """The launcher of one pytest process, and how it starts the worlds of jobs."""

    def __init__(self, config: pytest.Config, options: Options, context: LaunchContext) -> None:
        self._config = config
        self._options = options
        self._context = context
        self._launcher: Launcher | None = None
        self._started = 0
        self._warned_of_coverage = False
        self._imports = Preloading(options.preload)

    # --- the launcher ------------------------------------------------------------------------------

    def open(self) -> None:
        """Start the launcher: right after collection, before any test has run."""
        try:
            self._open()
        except OSError as error:
            raise pytest.UsageError(f"everyrank: no world can be started: {advice(error)}") from None

    def _open(self) -> None:
        name = self._options.launcher
        try:
            launch = launchers.find(name)
            device_types.known()
        except MisuseError as error:
            raise pytest.UsageError(f"everyrank: {error}") from None
        factory: Any = getattr(self._config, "_tmp_path_factory", None)
        if factory is not None and name != "spawn":
            factory.getbasetemp()  # all ranks share one folder
        try:
            self._use(launch(self._context))
        except MisuseError as error:
            raise pytest.UsageError(f"--launcher={name}: {error}") from None
        except CannotLaunch as problem:
            if name == "spawn":
                raise pytest.UsageError(f"--launcher=spawn is not possible: {problem}") from None
            warn(
                self._config,
                f"--launcher={name} is not possible: {problem}. Worlds are spawned instead, more slowly.",
            )
            self._spawn()

    def _use(self, launcher: Launcher) -> None:
        self._launcher = launcher
        launcher.before_tidying = lambda: self.collect_coverage(None)
        launcher.report = lambda text: holders.print_line(self._config, text)
        if self._options.death_stacks and not (launcher.same_host and native.reader_path()):
            warn(self._config, "--death-stacks needs ranks on this host, and pystack: pip install pystack")
        if self._options.preload and not launcher.forks:
            launcher.preload(spawn.imports_of_ranks())

    def _spawn(self) -> None:
        self._use(launchers.find("spawn")(self._context))

    @property
    def in_use(self) -> Launcher | None:
        """The launcher in use, which may be lost; None before it was started."""
        return self._launcher

    @property
    def launcher(self) -> Launcher:
        """The launcher that starts the next world: a new one, if the one in use is lost."""
        assert self._launcher is not None
        if self._launcher.lost:
            # Tests have run, so no new zygote can be forked; clean interpreters can always be started.
            warn(
                self._config, f"the {self._launcher.name} launcher {self._launcher.lost}: further worlds are spawned"
            )
            self._spawn()
        return self._launcher

    def close(self) -> None:
        """End the launcher, and all that it has started."""
        if self._launcher is not None:
            self._launcher.close()

    # --- worlds ------------------------------------------------------------------------------------

    def cannot_start(self, job: Job) -> str:
        """Return why the launcher can never start the world of this test, or ""."""
        launcher = self._launcher
        if launcher is None:
            return ""
        shape = _shape(job, launcher)
        if launcher.hosts.several and job.needs.least and shape.gpus is None:
            return f"needs {job.needs.count}, and on several hosts {launcher.name} has one for each rank"
        return launcher.cannot_start(shape)

    def has_room(self, job: Job) -> bool:
        """Return whether the world of this test can start beside the idle ones."""
        launcher = self.launcher
        return launcher.has_room(_shape(job, launcher))

    def key(self, job: Job) -> Key:
        """Return the key of a test's world: tests with equal keys may share one. Ranks that collect know one file."""
        return (*job.key, "" if self.launcher.forks else str(job.item.path))

    def start(self, job: Job, lease: GpuLease | None) -> LiveWorld:
        """Start the world of a test. Raise a MisuseError if no launcher lives long enough for it."""
        launcher, seats = self._seats(job, lease.fds if lease is not None else [])
        self._started += 1
        needs = _shape(job, launcher).gpus
        gpus = launcher.hosts.gpus_of(seats, needs) if needs is not None else lease
        try:
            world = LiveWorld(launcher, seats, self.key(job), self._started, gpus=gpus)
        except OSError:  # no descriptor is left for its selector
            launcher.kill(seats)
            for seat in seats:
                seat.close()
            raise
        if not launcher.forks:
            self._collect(world, job, gpus)
        return world

    def _seats(self, job: Job, fds: list[int]) -> tuple[Launcher, Sequence[Seat]]:
        launcher = self.launcher
        shape = _shape(job, launcher)
        seats = launcher.start(shape, fds)
        if not launcher.hosts.share_files and coverage.running() is not None and not self._warned_of_coverage:
            self._warned_of_coverage = True
            warn(self._config, "the coverage of ranks is not measured: they do not see this host's files")
        if launcher.lost:  # it died before this test: try again with a new launcher
            launcher = self.launcher
            seats = launcher.start(shape, fds)
        if launcher.lost:
            for seat in seats:
                seat.close()
            raise MisuseError(
                f"the {launcher.keeper_title} {launcher.lost} at its start, as the one before it had. Something ends "
                "processes as soon as they start: a limit on processes or memory (ulimit -a, a container's limits), "
                "or a program of yours"
            )
        return launcher, seats

    def _collect(self, world: LiveWorld, job: Job, gpus: WorldGpus | None) -> None:
        """Let ranks that are no forks collect the file of the test."""
        launcher = world.launcher
        measuring = coverage.settings(launcher.folder) if launcher.hosts.share_files else {}
        for rank, seat in enumerate(world.seats):
            with contextlib.suppress(Closed):
                name = f"world-{world.number}-rank-{rank}"
                # Set this before the import: a file may initialise CUDA when it is collected.
                sees = gpus.visible_to(rank) if gpus is not None else {}
                visible = {device_types.find(kind).variable: listed for kind, listed in sees.items()}
                temp = "" if launcher.hosts.share_files else launcher.hosts.folder_of(seat)
                order = spawn.collect(
                    self._config, str(job.item.path), name, visible, measuring, temp, launcher.hosts.working_dir
                )
                seat.channel.send(order)

    # --- imports -----------------------------------------------------------------------------------

    def note_imports(self, fates: Fates) -> bool:
        """Note what the ranks of a test imported. Return whether the zygote should import it for further ranks."""
        self._imports.note(fates)
        launcher = self._launcher
        return launcher is not None and not launcher.lost and launcher.forks and self._imports.is_due

    @property
    def is_importing(self) -> bool:
        """Whether further ranks wait for imports, or would if they were started now."""
        return self._imports.is_due or self.launcher.preloading

    def import_soon(self) -> None:
        """Let the zygote import what is due, while tests go on."""
        launcher = self.launcher
        if not launcher.preloading:
            self._preload(launcher)

    def settle(self) -> None:
        """Let the zygote import what is due, and wait for it."""
        launcher = self.launcher
        self._preload(launcher)
        launcher.settle()

    def _preload(self, launcher: Launcher) -> None:
        if launcher.forks and (order := self._imports.take()) is not None:
            launcher.settle()
            launcher.preload(order)

    # --- coverage ----------------------------------------------------------------------------------

    def collect_coverage(self, world: LiveWorld | None) -> None:
        """Collect the coverage that the ranks of an ended world saved; without a world, all that is left."""
        if self._launcher is not None:
            pids = None if world is None else [seat.pid for seat in world.seats]
            coverage.collect(self._launcher.folder, lambda text: warn(self._config, text), pids)


def _shape(job: Job, launcher: Launcher) -> Shape:
    """Return what the launcher starts for a test, with its GPUs unless this host's are leased."""
    on_hosts = launcher.hosts.several and job.needs.least
    gpus = requirements.one_for_each_rank(job.needs, job.size) if on_hosts else None
    return Shape(job.size, job.declared.spread, gpus)
