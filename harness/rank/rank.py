"""A rank's process: it takes orders, lets pytest run the item itself, files a record and leaves in order."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import traceback
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import pytest
from everyrank.devices import device_types
from everyrank.launch.native import reader_path
from everyrank.leaks import libraries
from everyrank.leaks.describe import KINDS
from everyrank.leaks.snapshot import LeakWatch, swept_folders
from everyrank.model.run_mark import RUN_VARIABLE, run_mark
from everyrank.rank import context, coverage, groups, sizes, torchrun
from everyrank.rank.debugger import RankDebugger, UserTerminal
from everyrank.rank.failure_text import describe_failure, fingerprint
from everyrank.rank.groups import Groups
from everyrank.rank.hooks import RankHooks
from everyrank.rank.imports import Imports
from everyrank.rank.prepare import prepare_process, prepare_session
from everyrank.rank.questions import Questions
from everyrank.rank.seeds import seed_generators
from everyrank.rank.witness import Witness
from everyrank.rank.world import MeetOthers, World, enter
from everyrank.wire import torchrun_variables
from everyrank.wire.channel import Channel, Closed
from everyrank.wire.messages import (
    ClosedUp,
    CloseUp,
    DestroysGroup,
    FaultActs,
    Leak,
    Leave,
    LeftWorld,
    Order,
    Phase,
    PhaseEnded,
    Record,
    ToRank,
    Warned,
)
from everyrank.wire.progress import Progress, SentProgress
from everyrank.wire.truncate import truncate

if TYPE_CHECKING:
    from everyrank.faults.planned import Planned
    from everyrank.model.fault import Plan
    from everyrank.model.mutation import Observe
    from everyrank.mutate.watcher import Watcher


class Rank:
    """One process of a world, from its first order to its last.

    A zygote creates one Rank and its forks continue with it: what all ranks have in common is done once, and its
    memory is shared. Fixtures see a ``RankContext`` of it.
    """

    channel: Channel[ToRank]

    def __init__(self, session: pytest.Session, terminal: tuple[int, ...]) -> None:
        self._session = session
        self._config = session.config
        self._witness = Witness(lambda statement: self.channel.send(statement))
        self._questions = Questions(lambda: self.channel)
        self._groups = Groups()
        self._rendezvous = torchrun.Rendezvous()
        self._hooks = RankHooks(session.config, self._groups.is_open)
        self.variables_before = {name: os.environ.get(name) for name in torchrun_variables.ALL}
        self.world: World
        self.item: pytest.Item
        self.leaks: list[Leak] = []
        self.notes: dict[str, Any] = {}
        self._order: Order
        self._watch: LeakWatch
        self._measured: coverage.RankCoverage | None = None
        self._used_up: list[str] = []
        self._watcher: Watcher | None = None
        self._planned: Planned | None = None
        self._imports: Imports
        context.become(self, session.config)
        prepare_session(session.config, self._hooks)
        asks, releases = self._questions.ask_debugger, self._questions.release_debugger
        RankDebugger(session.config, asks, releases, UserTerminal(terminal))

    # --- orders ------------------------------------------------------------------------------------

    def serve(self, channel: Channel[ToRank], stacks: int, progress: int) -> None:
        """Take orders until the controller ends the world; then end the process."""
        self.channel = channel
        self._hooks.start(channel.send, Progress(progress) if channel.is_local else SentProgress(channel.send))
        self._imports = Imports(self._config.rootpath)
        sleeps = channel.is_local and self._config.getoption("death_stacks") and bool(reader_path())
        prepare_process(stacks, sleeps)
        try:
            while True:
                match message := self.channel.receive():
                    case Order():
                        self.channel.send(self.run(message))
                    case CloseUp():
                        self.channel.send(ClosedUp(self._groups.barrier()))
                    case Leave():
                        problem = _tear_down(self._session)
                        self._save_coverage()
                        self.channel.send(LeftWorld(problem))
                        os._exit(0)
        except Closed:
            os._exit(1)

    def run(self, order: Order) -> Record:
        """Run one test and return its record; only the death of this process prevents that."""
        self.leaks, self.notes, self._keep_if_xfailed, self._watcher = [], {}, False, None
        self._planned = None
        self._hooks.reset()
        try:
            item, trouble = _find(self._session.items, order.nodeid, order.index, order.occurrence)
            if item is None:
                return self._record("", [], [], trouble)
            self._order, self.item = order, item
            run_folder = self.run_folder
            self.world = _enter(order, run_folder, self._questions.meet)
            self._measured = self._measured or coverage.of_this_rank(self._config, run_folder)
            self._watch = LeakWatch(swept_folders(self._config, run_folder))
            self._witness.begin(order.number, run_folder, self._watch)
            sizes.begin()
            self._rendezvous.begin(order, self._watch)
            self._hooks.begin(order, item, self._watch)
            self._groups.begin_test()
            nextitem = None
            if order.next_nodeid is not None:
                nextitem, _ = _find(self._session.items, order.next_nodeid, order.next_index, 0)
            request, self._watcher = None, None if order.watch is None else _watch(order.watch, order.rank)
            self._planned = None if order.plan is None else _plan(order.plan, order.rank, self.channel)
            try:
                item.ihook.pytest_runtest_protocol(item=item, nextitem=nextitem)
            except pytest.exit.Exception as error:
                request = error
            except KeyboardInterrupt as error:
                excinfo = pytest.ExceptionInfo.from_exception(error)
                text = {"text": truncate(str(item.repr_failure(excinfo)))}
                self._hooks.phases.append(Phase("call", "failed", text, time.monotonic(), *describe_failure(excinfo)))
            if self._watcher is not None:
                self._watcher.stop()
            if self._planned is not None:
                self._planned.stop()
            self._rendezvous.end()
            groups.unbind_defaults()
            self._groups.forget_meshes()
            complete = request is None  # pytest.exit() interrupts the test
            leaks, unclean = self._watch.leaks() if complete else ([], [])
            unclean = [*self._used_up, *unclean]
            unclean += [f"left {KINDS[leak.kind][0]}: {leak.description}" for leak in [*self.leaks, *leaks]]
            if self._groups.lost():
                unclean.append("destroyed or replaced the default group")
            leaks = [*self.leaks, *(leaks if order.leaks != "off" else [])]
            self._save_coverage()
            return self._record(fingerprint(item), leaks, list(dict.fromkeys(unclean)), "", request)
        except BaseException:
            return self._record("", [], [], truncate(traceback.format_exc()))

    def _record(self, seen: str, leaks: list[Leak], unclean: list[str], trouble: str, request: Any = None) -> Record:
        """Make the record; ``request`` is the exception of ``pytest.exit()``, if it was called."""
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # a test may have closed it
                stream.flush()
        messages = self._groups.messages()
        return Record(
            fingerprint=seen,
            phases=self._hooks.phases,
            leaks=leaks,
            warnings=self._hooks.warnings,
            unclean=unclean,
            collectives=self._groups.collectives(),
            quiet=self._groups.quiet(),
            sent={} if messages is None else dict(messages.sent),
            asked={} if messages is None else dict(messages.asked),
            sizes=sizes.noted(),
            trouble=trouble,
            exit_request=None if request is None else str(request),
            exit_code=None if request is None else request.returncode,
            stop_request=str(self._session.shouldstop or ""),
            fail_request=str(self._session.shouldfail or ""),
            notes=truncate(self.notes),
            imports=self._imports.new(),
            keep_if_xfailed=self._keep_if_xfailed,
            seen=None if self._watcher is None else self._watcher.seen(),
            counted=None if self._planned is None else self._planned.counted(),
        )

    def _save_coverage(self) -> None:
        if self._measured is None:
            return
        try:
            self._measured.save()
        except Exception as error:
            text = f"the coverage of rank {self._order.rank} was not saved: {error}"
            self._hooks.warnings.append(Warned("PytestWarning", "pytest", text, __file__, 0, "runtest"))

    # --- for fixtures: see RankContext ---------------------------------------------------------------

    @property
    def run_folder(self) -> str:
        return os.path.dirname(self._order.folder)

    @property
    def calling(self) -> bool:
        return self._hooks.calling

    def failed(self) -> bool:
        return not self._hooks.outcomes.isdisjoint({"failed", "xfailed", "skipped"})

    def may_be_kept(self) -> bool:
        return not self.failed() or (self._keep_if_xfailed and self._hooks.outcomes <= {"passed", "xfailed"})

    def gather(self, point: str, text: str) -> list[str] | None:
        met = self._questions.meet(point, "", text)
        return met.texts if not met.missing and set(met.points) == {point} else None

    def announce_skip(self, reason: str) -> None:
        skipped = f"Skipped: {reason}"
        self.channel.send(
            PhaseEnded(Phase("call", "skipped", {"longrepr": ["", 0, skipped]}, time.monotonic(), skipped))
        )

    def announce_destruction(self) -> None:
        self.channel.send(DestroysGroup())

    def allowing(self) -> AbstractContextManager[None]:
        return self._watch.allowing()

    def use_up(self, reason: str) -> None:
        self._used_up.append(reason)

    def keep_if_xfailed(self) -> None:
        self._keep_if_xfailed = True

    def default_group(self) -> AbstractContextManager[Any]:
        keep = self._order.keep
        return self._groups.default(self.world, self._watch, leaving=not keep, keep=keep and self._order.group)

    def keep_group(self, group: Any) -> None:
        self._groups.keep(group)


def _find(items: list[pytest.Item], nodeid: str, index: int, occurrence: int) -> tuple[pytest.Item | None, str]:
    if index < len(items) and items[index].nodeid == nodeid:
        return items[index], ""
    named = [item for item in items if item.nodeid == nodeid]
    if occurrence < len(named):
        return named[occurrence], ""
    close = [item.nodeid for item in items if item.nodeid.split("[")[0] == nodeid.split("[")[0]]
    return None, f"this rank collected no such test; its tests of that name: {close or 'none'}"


def _enter(order: Order, run_folder: str, meet: MeetOthers) -> World:
    """Make this process a rank of the test's world: its environment, and its generators."""
    world = World(
        rank=order.rank,
        size=order.size,
        local_rank=order.local_rank,
        device=order.device,
        backend=order.backend,
        seed=order.seed,
        faults=() if order.plan is None else tuple(fault.text for fault in order.plan.faults),
        _folder=order.folder,
        _shared=order.shared,
        _meet=meet,
    )
    enter(world)
    torchrun_variables.enter(order)
    for kind, listed in order.visible.items():
        os.environ[device_types.find(kind).variable] = listed
    os.environ["EVERYRANK_NODEID"] = order.nodeid
    os.environ[RUN_VARIABLE] = run_mark(run_folder, os.getsid(0))  # its keeper leads the session
    libraries.redirect_multiprocessing(run_folder)
    seed_generators(order.seed)
    return world


def _watch(asked: Observe, rank: int) -> Watcher:
    from everyrank.mutate import watcher

    return watcher.watch(asked, rank)


def _plan(plan: Plan, rank: int, channel: Channel[ToRank]) -> Planned:
    from everyrank.faults.planned import Planned

    return Planned(plan, rank, lambda fault, made: channel.send(FaultActs(fault, made)), channel.fileno())


def _tear_down(session: pytest.Session) -> str:
    """Tear down the fixtures of wider scopes after the last test. Return the failure, or an empty text."""
    try:
        session._setupstate.teardown_exact(None)
    except pytest.skip.Exception:
        return ""  # as in a teardown that a test reports
    except BaseException as error:
        return str(truncate("".join(traceback.format_exception(error))))
    return ""
