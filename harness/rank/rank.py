"""A rank's process: it takes orders, lets pytest run the item itself, files a record and leaves in order."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import time
import traceback
from collections.abc import Generator
from typing import Any

import msgspec
import pytest
from _pytest.runner import runtestprotocol
from everyrank.errors import MisuseError
from everyrank.launch.protocol import RUN_VARIABLE, STACKS_SIGNAL
from everyrank.leaks import libraries
from everyrank.leaks.describe import KINDS
from everyrank.leaks.snapshot import Watch, swept_folders
from everyrank.rank import coverage, groups, torchrun
from everyrank.rank.debugger import RankDebugger, UserTerminal
from everyrank.rank.failure_text import describe_failure, fingerprint
from everyrank.rank.groups import Groups
from everyrank.rank.hints import add_hint, hint
from everyrank.rank.imports import Imports
from everyrank.rank.seeds import seed_generators
from everyrank.rank.warnings_filed import as_warned, is_ignored
from everyrank.rank.witness import Witness
from everyrank.rank.world import World, enter
from everyrank.resources.gpus import devices
from everyrank.wire.channel import Channel, Closed
from everyrank.wire.messages import (
    ClosedUp,
    CloseUp,
    Deadline,
    DebuggerLeft,
    Granted,
    Leak,
    Leave,
    LeftWorld,
    Meet,
    Met,
    Order,
    Phase,
    PhaseEnded,
    Record,
    ToRank,
    WantsDebugger,
    Warned,
)
from everyrank.wire.progress import Progress
from everyrank.wire.truncate import truncate

RANK: pytest.StashKey[Rank] = pytest.StashKey()

_rank: list[Rank] = []


def current_rank() -> Rank:
    """Return the rank that this process is."""
    if not _rank:
        raise MisuseError("this process is not a rank of a world")
    return _rank[-1]


def notes() -> dict[str, Any]:
    """Return the dict of what this rank's test notes about itself, for reports; not read outside of a world."""
    return _rank[-1].notes if _rank else {}


class Rank:
    """One process of a world, from its first order to its last; also a pytest plugin in that process.

    A zygote creates one Rank and its forks continue with it: what all ranks have in common is done once, and its
    memory is shared.
    """

    channel: Channel[ToRank]

    def __init__(self, session: pytest.Session, terminal: tuple[int, ...]) -> None:
        self.session = session
        self.config = session.config
        self.witness = Witness(lambda statement: self.channel.send(statement))
        self.groups = Groups()
        self._rendezvous = torchrun.Rendezvous()
        #: The values that torchrun's variables had after the collection, before this process became a rank.
        self.variables_before = {name: os.environ.get(name) for name in torchrun.VARIABLES}
        self.watch: Watch
        self.order: Order
        self.world: World
        self.item: pytest.Item
        self.leaks: list[Leak] = []
        self.measured: coverage.RankCoverage | None = None
        self.not_reusable: list[str] = []  # further reasons why this process cannot serve another test
        self.notes: dict[str, Any] = {}
        self._phases: list[Phase] = []
        self._warnings: list[Warned] = []
        self.calling = False
        self._subtest: Phase | None = None
        self._progress: Progress
        self._imports: Imports
        self._terminal = UserTerminal(terminal)
        self._serializer = self.config.hook.pytest_report_to_serializable
        _rank[:] = [self]
        self._prepare()

    # --- orders ------------------------------------------------------------------------------------

    def serve(self, channel: Channel[ToRank], stacks: int, progress: int) -> None:
        """Take orders until the controller ends the world; then end the process."""
        self.channel = channel
        self._progress = Progress(progress)
        self._imports = Imports(self.config.rootpath)
        self._prepare_fork(stacks)
        try:
            while True:
                message = self.channel.receive()
                if isinstance(message, Order):
                    self.channel.send(self.run(message))
                elif isinstance(message, CloseUp):
                    self.channel.send(ClosedUp(self.groups.barrier()))
                elif isinstance(message, Leave):
                    problem = self._tear_down()
                    self._save_coverage()
                    self.channel.send(LeftWorld(problem))
                    os._exit(0)
        except Closed:
            os._exit(1)

    def _prepare(self) -> None:
        """Prepare this process and its forks."""
        os.environ["OMP_NUM_THREADS"] = "1"
        # A host name may not resolve in a sandbox; ranks on one host need only its loopback interface.
        loopback = "lo" if sys.platform == "linux" else "lo0"
        for variable in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
            os.environ.setdefault(variable, loopback)
        self.config.stash[RANK] = self
        manager = self.config.pluginmanager
        controller = manager.get_plugin("everyrank-controller")
        if controller is not None:
            manager.unregister(controller)
        if hasattr(self.config.option, "randomly_reset_seed"):
            # pytest-randomly would give all ranks the same seed, which hides missing communication.
            self.config.option.randomly_reset_seed = False
        manager.register(self, "everyrank-rank")
        # Other plugins get this rank's reports in the controller. From here, xdist's worker would write to its
        # master on a stream that it shares with the controller and all ranks.
        for hook in (self.config.hook.pytest_runtest_logreport, self.config.hook.pytest_warning_recorded):
            for implementation in hook.get_hookimpls():
                if implementation.plugin is not self:
                    hook._remove_plugin(implementation.plugin)
        RankDebugger(self.config, self._ask_debugger, self._release_debugger, self._terminal)

    def _prepare_fork(self, stacks: int) -> None:
        """Prepare what each process needs separately."""
        faulthandler.enable(file=stacks)
        faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=True, chain=False)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)
        if "torch" in sys.modules:
            import torch

            # torchrun does the same. After a fork, OpenMP can hang with more than one thread.
            torch.set_num_threads(1)

    def run(self, order: Order) -> Record:
        """Run one test and return its record; only the death of this process prevents that."""
        self._phases, self._warnings, self.leaks, self._subtest = [], [], [], None
        self.notes = {}
        try:
            item, trouble = self._find(order.nodeid, order.index, order.occurrence)
            if item is None:
                return self._record("", [], [], trouble)
            self._enter(order)
            self.item = item
            run_folder = os.path.dirname(order.folder)
            self.measured = self.measured or coverage.of_this_rank(self.config, run_folder)
            self.watch = Watch(swept_folders(self.config, run_folder))
            self.witness.begin(order.number, run_folder, self.watch)
            self._rendezvous.begin(order, self.watch)
            nextitem = None
            if order.next_nodeid is not None:
                nextitem, _ = self._find(order.next_nodeid, order.next_index, 0)
            exit_request = None
            try:
                item.ihook.pytest_runtest_protocol(item=item, nextitem=nextitem)
            except pytest.exit.Exception as error:
                exit_request = str(error)
            except KeyboardInterrupt as error:
                excinfo = pytest.ExceptionInfo.from_exception(error)
                text = {"text": truncate(str(item.repr_failure(excinfo)))}
                self._phases.append(Phase("call", "failed", text, time.monotonic(), *describe_failure(excinfo)))
            self._rendezvous.end()
            groups.unbind_defaults()
            complete = exit_request is None  # pytest.exit() interrupts the test
            leaks, unclean = self.watch.leaks() if complete else ([], [])
            unclean = [*self.not_reusable, *unclean]
            unclean += [f"left {KINDS[leak.kind][0]}: {leak.description}" for leak in [*self.leaks, *leaks]]
            if self.groups.lost():
                unclean.append("destroyed or replaced the default group")
            leaks = [*self.leaks, *(leaks if order.leaks != "off" else [])]
            self._save_coverage()
            return self._record(fingerprint(item), leaks, list(dict.fromkeys(unclean)), "", exit_request)
        except BaseException:
            return self._record("", [], [], truncate(traceback.format_exc()))

    def _record(
        self,
        fingerprint_text: str,
        leaks: list[Leak],
        unclean: list[str],
        trouble: str,
        exit_request: str | None = None,
    ) -> Record:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # a test may have closed it
                stream.flush()
        return Record(
            fingerprint=fingerprint_text,
            phases=self._phases,
            leaks=leaks,
            warnings=self._warnings,
            unclean=unclean,
            collectives=self.groups.collectives(),
            trouble=trouble,
            exit_request=exit_request,
            stop_request=str(self.session.shouldstop or ""),
            notes=truncate(self.notes),
            imports=self._imports.new(),
        )

    def _find(self, nodeid: str, index: int, occurrence: int) -> tuple[pytest.Item | None, str]:
        items = self.session.items
        if index < len(items) and items[index].nodeid == nodeid:
            return items[index], ""
        named = [item for item in items if item.nodeid == nodeid]
        if occurrence < len(named):
            return named[occurrence], ""
        close = [item.nodeid for item in items if item.nodeid.split("[")[0] == nodeid.split("[")[0]]
        return None, f"this rank collected no such test; its tests of that name: {close or 'none'}"

    def _enter(self, order: Order) -> None:
        self.order = order
        self.world = World(
            rank=order.rank,
            size=order.size,
            local_rank=order.rank,
            device=order.device,
            backend=order.backend,
            seed=order.seed,
            _folder=order.folder,
            _meet=self._meet,
        )
        enter(self.world)
        os.environ.update(torchrun.environment(order.rank, order.size, order.port))
        if order.visible is not None:
            os.environ[devices.variable()] = order.visible
        os.environ["EVERYRANK_NODEID"] = order.nodeid
        os.environ[RUN_VARIABLE] = os.path.dirname(order.folder)
        libraries.redirect_multiprocessing(os.path.dirname(order.folder))
        seed_generators(order.seed)

    def _save_coverage(self) -> None:
        if self.measured is None:
            return
        try:
            self.measured.save()
        except Exception as error:
            text = f"the coverage of rank {self.order.rank} was not saved: {error}"
            self._warnings.append(Warned("PytestWarning", "pytest", text, __file__, 0, "runtest"))

    def _tear_down(self) -> str:
        """Tear down the fixtures of wider scopes after the last test. Return the failure, or an empty text."""
        try:
            self.session._setupstate.teardown_exact(None)
        except BaseException as error:
            return str(truncate("".join(traceback.format_exception(error))))
        return ""

    def failed(self) -> bool:
        """Return whether this rank's test has failed or was skipped so far."""
        return any(phase.outcome in ("failed", "xfailed", "skipped") for phase in self._phases)

    def announce_skip(self, reason: str) -> None:
        """Report that this rank skips the test before it waits for the others: they may wait for it."""
        skipped = f"Skipped: {reason}"
        self.channel.send(
            PhaseEnded(Phase("call", "skipped", {"longrepr": ["", 0, skipped]}, time.monotonic(), skipped))
        )

    # --- questions to the controller ---------------------------------------------------------------

    def _meet(self, point: str, digest: str, text: str) -> Met:
        self.channel.send(Meet(point, digest, text))
        met: Met = self._answer(Met)
        return met

    def gather(self, point: str, text: str) -> list[str] | None:
        """Wait for all ranks at this point and return their texts; None if one of them will never reach it."""
        met = self._meet(point, "", text)
        return met.texts if not met.missing and set(met.points) == {point} else None

    def _ask_debugger(self, reason: str) -> bool:
        self.channel.send(WantsDebugger(reason))
        granted: Granted = self._answer(Granted)
        return granted.yes

    def _release_debugger(self) -> None:
        self.channel.send(DebuggerLeft())

    def _answer(self, kind: type[Any]) -> Any:
        message = self.channel.receive()
        if not isinstance(message, kind):
            raise RuntimeError(f"everyrank: expected {kind.__name__}, got {message!r}")
        return message

    # --- pytest's hooks, in this process -----------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        runtestprotocol(item, log=False, nextitem=nextitem)
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, Any, Any]:
        __tracebackhide__ = True
        self._progress.begin(self.order.number, "setup")
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None, Any, Any]:
        __tracebackhide__ = True
        self._progress.enter("call")
        seed_generators(self.order.seed)  # so that fixtures cannot change what the test draws
        self.calling = True
        try:
            return (yield)
        finally:
            self.calling = False

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, Any, Any]:
        __tracebackhide__ = True
        self._progress.enter("teardown")
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        ended_at = time.monotonic()
        report = yield
        outcome: str = report.outcome
        if hasattr(report, "wasxfail"):
            outcome = "xfailed" if report.outcome == "skipped" else "xpassed"
        strict = call.excinfo is None and report.outcome == "failed"
        if call.excinfo is not None and (advice := hint(call.excinfo.value, call.when, self.groups.is_open())):
            add_hint(report, advice)
        brief, location, signature = describe_failure(call.excinfo)
        if strict:
            outcome, brief = "xpassed", str(report.longrepr)
        data = truncate(self._serializer(config=self.config, report=report))
        phase = Phase(str(report.when), outcome, data, ended_at, brief, location, signature, strict)
        if self.calling:
            self._subtest = phase  # its report follows
            return report
        self._phases.append(phase)
        if outcome in ("failed", "skipped", "xfailed"):
            self.channel.send(PhaseEnded(phase))
        return report

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: Any) -> None:
        """Add the failure of a subtest to the record: the test goes on and fails. In a rank, pytest calls this
        hook for subtests only. Subtests that pass are not reported, as usual in pytest."""
        if self._subtest is None or not report.failed:
            return
        name = report.head_line.removeprefix(f"{report.location[2]} ")
        data = truncate(self._serializer(config=self.config, report=report))
        with contextlib.suppress(AttributeError, KeyError, TypeError):
            data["longrepr"]["chain"][-1][1]["message"] = f"{name} {report.longrepr.reprcrash.message}"
        subtest = self._subtest
        location = f"{subtest.location} in subtest {name}"
        self._phases.append(
            msgspec.structs.replace(subtest, report=data, location=location, signature=f"{subtest.signature} {name}")
        )

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
        __tracebackhide__ = True
        with contextlib.ExitStack() as stack:
            if fixturedef.scope != "function":
                stack.enter_context(self.watch.allowing())
            return (yield)

    @pytest.hookimpl
    def pytest_warning_recorded(self, warning_message: Any, when: str) -> None:
        if when != "runtest" or not is_ignored(self.item, warning_message):
            self._warnings.append(as_warned(warning_message, when))

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_set_timer(self, settings: Any) -> bool:
        """Report a timer that starts with the call; the controller keeps all other time limits itself."""
        if settings.func_only:
            self.channel.send(Deadline(settings.timeout))
        return True

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_cancel_timer(self) -> bool:
        return True
