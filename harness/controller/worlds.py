"""The worlds of a run: start them by a launcher, keep them warm, fork them ahead, and end them."""

from __future__ import annotations

import contextlib
import functools
import sys
import tempfile
import warnings
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from everyrank.controller.live_world import LiveWorld
from everyrank.controller.point_to_point import not_received
from everyrank.controller.preload import Preloading
from everyrank.declare import requirements
from everyrank.declare.job import Job, Key
from everyrank.declare.stash import DECLARATION
from everyrank.devices import device_types
from everyrank.errors import MisuseError
from everyrank.launch import fork, launchers, native, spawn
from everyrank.launch.limits import advice
from everyrank.launch.protocol import CannotLaunch, LaunchContext, Launcher, Shape
from everyrank.leaks.snapshot import snapshot
from everyrank.model.ranks import ranks_text
from everyrank.options import Options
from everyrank.rank import coverage
from everyrank.rank.seeds import accelerated
from everyrank.rank.start import prepare_ranks
from everyrank.resources import cores, holders, leases
from everyrank.resources.gpus.gpu_leases import GpuLease
from everyrank.verdict.leak_lines import leak_lines
from everyrank.verdict.rules import Fates, Verdict
from everyrank.wire.channel import Closed

#: Idle warm worlds are kept up to this many ranks together.
_IDLE_RANKS = 48

#: At most this many reasons why a world is not kept are reported.
_REASONS = 5


class Worlds:
    """The worlds of one pytest process. Tests with equal keys may share one."""

    def __init__(
        self,
        session: pytest.Session,
        options: Options,
        leave_behind: Callable[[], object],
        dismiss: Callable[[LiveWorld], None],
        terminal: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._config = session.config
        self._options = options
        self._dismiss_in_order = dismiss
        self._context = launch_context(session, leave_behind, terminal, options.rank_cores)
        self._launcher: Launcher | None = None
        self._idle: OrderedDict[Key, LiveWorld] = OrderedDict()
        self._spare: LiveWorld | None = None  # for the next test, forked while this one runs
        self._started = 0
        self._warned_of_coverage = False
        self._preloading = Preloading(options.preload)

    def open(self) -> None:
        """Start the launcher: right after collection, before any test has run."""
        try:
            self._open()
        except OSError as error:
            raise pytest.UsageError(f"everyrank: no world can be started: {advice(error)}") from None

    def _open(self) -> None:
        try:
            launch = launchers.find(self._options.launcher)
            device_types.known()
        except MisuseError as error:
            raise pytest.UsageError(f"everyrank: {error}") from None
        factory: Any = getattr(self._config, "_tmp_path_factory", None)
        if factory is not None and self._options.launcher != "spawn":
            factory.getbasetemp()  # all ranks share one folder
        try:
            self._use(launch(self._context))
        except MisuseError as error:
            raise pytest.UsageError(f"--launcher={self._options.launcher}: {error}") from None
        except CannotLaunch as problem:
            if self._options.launcher == "spawn":
                raise pytest.UsageError(f"--launcher=spawn is not possible: {problem}") from None
            name = self._options.launcher
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

    def close(self) -> None:
        """End every world, in order if possible, and leave nothing behind."""
        try:
            for world in list(self._idle.values()):
                self.dismiss(world)
        finally:
            self._idle.clear()
            if self._spare is not None:
                self._spare.end()
            if self._launcher is not None:
                self._launcher.close()

    def cannot_start(self, job: Job) -> str:
        """Return why the launcher can never start the world of this test, or ""."""
        launcher = self._launcher
        if launcher is None:
            return ""
        shape = _shape(job, launcher)
        if launcher.spans_hosts and job.needs.least and shape.gpus is None:
            return f"needs {job.needs.count}, and on several hosts {launcher.name} has one for each rank"
        return launcher.cannot_start(shape)

    @property
    def up(self) -> int:
        """Return the number of worlds that are kept or forked ahead, without the one that runs a test."""
        return len(self._idle) + (self._spare is not None)

    @property
    def launcher(self) -> Launcher:
        assert self._launcher is not None
        if self._launcher.lost:
            # Tests have run, so no new zygote can be forked; clean interpreters can always be started.
            warn(
                self._config, f"the {self._launcher.name} launcher {self._launcher.lost}: further worlds are spawned"
            )
            for world in self._idle.values():
                world.end()
            self._idle.clear()
            self._spawn()
        return self._launcher

    def key(self, job: Job) -> Key:
        """Return the key of a test's world: tests with equal keys may share one. Ranks that collect know one file."""
        return (*job.key, "" if self.launcher.forks else str(job.item.path))

    def may_share(self, job: Job, other: Job | None) -> bool:
        """Return whether that test may run in the world of this one."""
        return other is not None and not other.fresh and self.key(other) == self.key(job)

    def warm(self, job: Job) -> LiveWorld | None:
        """Take an idle world for this test, if all its ranks still live."""
        launcher = self.launcher
        world = self._idle.pop(self.key(job), None)
        if world is None:
            return None
        launcher.catch_up()
        overdue = world.gpus is not None and world.gpus.is_overdue()
        if overdue or any(seat.gone for seat in world.seats):
            self.dismiss(world)
            return None
        return world

    def collect_coverage(self, world: LiveWorld | None) -> None:
        """Collect the coverage that the ranks of an ended world saved; without a world, all that is left."""
        if self._launcher is not None:
            pids = None if world is None else [seat.pid for seat in world.seats]
            coverage.collect(self._launcher.folder, lambda text: warn(self._config, text), pids)

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
        self._idle[world.key] = world
        while sum(len(idle.seats) for idle in self._idle.values()) > _IDLE_RANKS and len(self._idle) > 1:
            _, oldest = self._idle.popitem(last=False)
            self.dismiss(oldest)

    def start(self, job: Job, lease: GpuLease | None = None) -> LiveWorld:
        launcher = self.launcher
        self._preload(launcher)
        launcher.settle()
        fds, shape = lease.fds if lease is not None else [], _shape(job, launcher)
        if not launcher.has_room(shape):
            self.give_back()
        seats = launcher.start(shape, fds)
        if not launcher.shares_files and coverage.running() is not None and not self._warned_of_coverage:
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
        self._started += 1
        gpus = launcher.gpus_of(seats, shape.gpus) if shape.gpus is not None else lease
        try:
            world = LiveWorld(launcher, seats, self.key(job), self._started, gpus=gpus)
        except OSError:  # no descriptor is left for its selector
            launcher.kill(seats)
            for seat in seats:
                seat.close()
            raise
        if not launcher.forks:
            measuring = coverage.settings(launcher.folder) if launcher.shares_files else {}
            for rank, seat in enumerate(world.seats):
                with contextlib.suppress(Closed):
                    name = f"world-{self._started}-rank-{rank}"
                    # Set this before the import: a file may initialise CUDA when it is collected.
                    sees = gpus.visible_to(rank) if gpus is not None else {}
                    visible = {device_types.find(kind).variable: listed for kind, listed in sees.items()}
                    temp = "" if launcher.shares_files else launcher.folder_of(seat)
                    order = spawn.collect(
                        self._config, str(job.item.path), name, visible, measuring, temp, launcher.working_dir
                    )
                    seat.channel.send(order)
        return world

    def start_spare(self, job: Job) -> None:
        """Fork the ranks of the next test while this one runs.

        If that fails, this test is not to blame: the next one tries again, and says why it cannot start.
        """
        # A test does not wait for imports that the next one may need.
        ready = not self._preloading.is_due and not self.launcher.preloading
        if ready and self._spare is None and self.launcher.forks and job.size <= leases.capacity():
            with contextlib.suppress(OSError, MisuseError):
                self._spare = self.start(job)

    def note_imports(self, fates: Fates, more_worlds: Callable[[], bool]) -> None:
        """Note what the ranks of a test imported, so that the zygote imports it for further ranks.

        If the run will need more worlds, the zygote imports now, while tests go on; otherwise before the next world.
        """
        self._preloading.note(fates)
        launcher = self._launcher
        if launcher is None or launcher.lost or not launcher.forks or not self._preloading.is_due:
            return
        if self._spare is not None:
            self._spare.end()  # its ranks would import all that again
            self._spare = None
        if not launcher.preloading and more_worlds():
            self._preload(launcher)

    def _preload(self, launcher: Launcher) -> None:
        if launcher.forks and (order := self._preloading.take()) is not None:
            launcher.settle()
            launcher.preload(order)

    def give_back_if_wanted(self) -> None:
        """Before an item: if others wait for what our idle worlds hold on the launcher's engine, end these worlds."""
        if self._launcher is not None and self._launcher.is_wanted():
            self.give_back()

    def give_back(self) -> None:
        """End the idle worlds, and give back what they held on the launcher's engine."""
        while self._idle:
            self.dismiss(self._idle.popitem(last=False)[1])
        if self._launcher is not None:
            self._launcher.give_back()

    def dismiss_with_gpus(self) -> None:
        """End the idle worlds that have GPUs, so that no test waits for these."""
        for key in [key for key, world in self._idle.items() if world.gpus is not None]:
            self.dismiss(self._idle.pop(key))

    def dismiss(self, world: LiveWorld) -> None:
        """End an idle world, in order if all its ranks still live."""
        if self._launcher is not None and not self._launcher.lost:
            self._launcher.catch_up()
        if any(seat.gone for seat in world.seats):
            world.end()  # it lost a rank between two tests; no test is affected
        else:
            self._dismiss_in_order(world)


def launch_context(
    session: pytest.Session,
    leave_behind: Callable[[], object] = lambda: None,
    terminal: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    rank_cores: str = cores.ALL,
) -> LaunchContext:
    """Return what a launcher may need of this run."""
    live = session.config.getoption("capture", "fd") != "fd"
    return LaunchContext(
        prepare=functools.partial(_prepare_zygote, session, leave_behind),
        new_folder=_new_folder,
        print_live=live,
        terminal=terminal,
        session=session,
        cores=cores.of_ranks(session.config, rank_cores),
    )


def _shape(job: Job, launcher: Launcher) -> Shape:
    """Return what the launcher starts for a test, with its GPUs unless this host's are leased."""
    on_hosts = launcher.spans_hosts and job.needs.least
    gpus = requirements.one_for_each_rank(job.needs, job.size) if on_hosts else None
    return Shape(job.size, job.declared.spread, gpus)


def _new_folder() -> str:
    try:
        return tempfile.mkdtemp(prefix="everyrank-")
    except OSError as error:
        raise pytest.UsageError(
            f"everyrank: cannot make a folder for this run in the temp folder {tempfile.gettempdir()}: "
            f"{error.strerror}. Make room there, or set TMPDIR to a folder that can be written."
        ) from None


def _prepare_zygote(session: pytest.Session, leave_behind: Callable[[], object]) -> fork.Zygote:
    """Prepare the zygote: do once what every rank would otherwise do, each with memory pages of its own.

    ``leave_behind`` drops what belongs to the controller alone.
    """
    leave_behind()
    declared = [item.stash[DECLARATION] for item in session.items if DECLARATION in item.stash]
    wanted = {name for declaration in declared for name in declaration.fixtures}
    if wanted & {"process_group", "rpc_agent", "warm_rpc_agent"}:
        import torch.distributed
    if wanted & {"rpc_agent", "warm_rpc_agent"}:
        import everyrank.rpc.agents  # noqa: F401
        import torch.distributed.rpc
        import torch.distributed.rpc.rref_proxy  # noqa: F401
    become_rank = prepare_ranks(session)
    _warm_up()
    return fork.Zygote(become_rank, _warm_up)


def _warm_up() -> None:
    """Let libraries do in the zygote what they do on their first call, so that no fork has to."""
    if "torch" in sys.modules:
        accelerated()
    if sys.modules.get("numpy") is not None:
        import numpy.random  # noqa: F401
    snapshot()


def why_not_kept(verdict: Verdict, fates: Fates) -> str:
    """Return why the world may not serve another test; "" if every rank did well and is as it was before."""
    records = {fate.rank: fate.record for fate in fates.ranks if fate.record is not None}
    expected = verdict.outcome == "xfailed" and all(
        record.keep_if_xfailed
        for record in records.values()
        if any(phase.outcome == "xfailed" for phase in record.phases)
    )
    if verdict.outcome not in ("passed", "skipped") and not expected:
        return "the test ended in an error" if verdict.outcome == "error" else f"the test {verdict.outcome}"
    if len(records) < len(fates.ranks):
        return "a rank filed no record"
    reasons: dict[str, list[int]] = {}
    for rank, record in records.items():
        for reason in record.unclean:
            reasons.setdefault(reason, []).append(rank)
    if reasons:
        return _join_some([f"{ranks_text(ranks)} {reason}" for reason, ranks in reasons.items()])
    if leaks := leak_lines(fates):
        return _join_some(leaks)
    counts = {record.collectives for record in records.values()}
    if len(counts) > 1:
        return "the ranks did not all issue the same number of collectives"
    return _join_some(not_received(records))


def _join_some(reasons: list[str]) -> str:
    more = f"; and {len(reasons) - _REASONS} more" if len(reasons) > _REASONS else ""
    return "; ".join(reasons[:_REASONS]) + more


def warn(config: pytest.Config, text: str) -> None:
    """Add a warning to pytest's summary. Do not use warnings.warn(): under ``-W error`` that would end the run."""
    category = pytest.PytestWarning
    message = warnings.WarningMessage(category(f"everyrank: {text}"), category, "everyrank", 0)
    config.hook.pytest_warning_recorded.call_historic(
        kwargs={"warning_message": message, "nodeid": "", "when": "config", "location": None}
    )
