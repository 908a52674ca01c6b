"""The worlds of a run: started by a launcher, kept warm, forked ahead, and seen off."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import warnings
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from everyrank import leases
from everyrank.begin import become_rank
from everyrank.channel import Closed
from everyrank.launch import fork, spawn
from everyrank.launch.local import LocalLauncher, pipes
from everyrank.liveworld import LiveWorld
from everyrank.options import Options
from everyrank.seeds import accelerated
from everyrank.stash import FIXTURES

#: Idle warm worlds are kept up to this many ranks together.
_IDLE_RANKS = 48

Key = tuple[object, ...]


class Worlds:
    """Every world of one pytest process. Tests of equal key may share one."""

    def __init__(
        self,
        session: pytest.Session,
        options: Options,
        leave_behind: Callable[[], object],
        see_off: Callable[[LiveWorld], None],
        terminal: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._session = session
        self._config = session.config
        self._options = options
        self._leave_behind = leave_behind  # in the zygote: what is the controller's alone
        self._see_off = see_off
        self._terminal = terminal
        self._launcher: LocalLauncher | None = None
        self._idle: OrderedDict[Key, LiveWorld] = OrderedDict()
        self._spare: LiveWorld | None = None  # for the next test, forked while this one runs
        self._started = 0

    def open(self) -> None:
        """Start the launcher: right after collection, before any test has run."""
        if self._options.launcher == "fork":
            why = fork.unavailable()
            if not why:
                factory: Any = getattr(self._config, "_tmp_path_factory", None)
                if factory is not None:
                    factory.getbasetemp()  # one for all ranks
                session = self._session
                launcher, why = fork.launch(
                    lambda *fds: become_rank(session, *fds), self._do_early, self._new_folder()
                )
                if not why:
                    self._use(launcher)
                    return
                launcher.close()
            warn(self._config, f"--launcher=fork is not possible: {why}. Worlds are spawned instead, more slowly.")
        self._use(self._spawn())

    def _use(self, launcher: LocalLauncher) -> None:
        self._launcher = launcher
        if self._config.getoption("capture", "fd") != "fd":
            launcher.make_output = pipes

    def _spawn(self) -> LocalLauncher:
        with self._terminal():  # clean interpreters inherit the real streams, for a debugger
            return spawn.launch(self._new_folder())

    def _new_folder(self) -> str:
        try:
            return tempfile.mkdtemp(prefix="everyrank-")
        except OSError as error:
            raise pytest.UsageError(
                f"everyrank: no folder for this run can be made in the temp folder {tempfile.gettempdir()}: "
                f"{error.strerror}. Make room there, or set TMPDIR to a folder that can be written."
            ) from None

    def _do_early(self) -> None:
        """In the zygote: what every rank would otherwise do by itself, and pay for with pages of its own."""
        self._leave_behind()
        wanted = {name for item in self._session.items for name in item.stash.get(FIXTURES, [])}
        if wanted & {"process_group", "rpc_agent", "warm_rpc_agent"}:
            import torch.distributed
        if wanted & {"rpc_agent", "warm_rpc_agent"}:
            import everyrank.rpc  # noqa: F401
            import torch.distributed.rpc
            import torch.distributed.rpc.rref_proxy  # noqa: F401
        if "torch" in sys.modules:
            accelerated()
        if "numpy" in sys.modules:
            import numpy.random  # noqa: F401

    def close(self) -> None:
        """End every world, in order where that can be had, and leave nothing behind."""
        try:
            for world in list(self._idle.values()):
                self.dismiss(world)
        finally:
            self._idle.clear()
            if self._spare is not None:
                self._spare.end()
            if self._launcher is not None:
                self._launcher.close()

    @property
    def up(self) -> int:
        """How many are kept or forked ahead, beside one that runs a test."""
        return len(self._idle) + (self._spare is not None)

    @property
    def launcher(self) -> LocalLauncher:
        assert self._launcher is not None
        if self._launcher.lost:
            # A zygote cannot be forked again now that tests have run; clean interpreters can always be had.
            warn(
                self._config, f"the {self._launcher.name} launcher {self._launcher.lost}: further worlds are spawned"
            )
            self._idle.clear()
            self._use(self._spawn())
        return self._launcher

    def warm(self, key: Key) -> LiveWorld | None:
        """An idle world that is still whole."""
        launcher = self.launcher
        world = self._idle.pop(key, None)
        if world is None:
            return None
        launcher.catch_up()
        if any(seat.gone for seat in world.seats):
            world.end()
            return None
        return world

    def take_spare(self, key: Key) -> LiveWorld | None:
        """The world that was forked ahead, if it is for this test and still whole."""
        launcher = self.launcher
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
        while sum(len(one.seats) for one in self._idle.values()) > _IDLE_RANKS and len(self._idle) > 1:
            _, oldest = self._idle.popitem(last=False)
            self.dismiss(oldest)

    def start(self, item: pytest.Item, size: int, key: Key) -> LiveWorld:
        launcher = self.launcher
        seats = launcher.start(size)
        if launcher.lost:  # it died since it was last heard of, which is no fault of this test
            launcher = self.launcher
            seats = launcher.start(size)
        self._started += 1
        world = LiveWorld(launcher, seats, key, self._started)
        if launcher.name == "spawn":
            for rank, seat in enumerate(world.seats):
                with contextlib.suppress(Closed):
                    seat.channel.send(
                        spawn.collect(self._config, str(item.path), f"world-{self._started}-rank-{rank}")
                    )
        return world

    def start_spare(self, item: pytest.Item, size: int, key: Key) -> None:
        """Fork the ranks of the next test while this one runs."""
        if self._spare is None and self.launcher.name == "fork" and size <= leases.capacity():
            self._spare = self.start(item, size, key)

    def dismiss(self, world: LiveWorld) -> None:
        """End an idle world, in order where that can be had."""
        if self._launcher is not None and not self._launcher.lost:
            self._launcher.catch_up()
        if any(seat.gone for seat in world.seats):
            world.end()  # it lost a rank between two tests, and no test by that
        else:
            self._see_off(world)


def warn(config: pytest.Config, text: str) -> None:
    """For the warnings summary. Not by warnings.warn(): under ``-W error`` that would end the run."""
    category = pytest.PytestWarning
    message = warnings.WarningMessage(category(f"everyrank: {text}"), category, "everyrank", 0)
    config.hook.pytest_warning_recorded.call_historic(
        kwargs={"warning_message": message, "nodeid": "", "when": "config", "location": None}
    )
