"""The controller: the pytest process. It gives each multi-rank test a world and logs one verdict."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from everyrank.controller.attempts import Attempts
from everyrank.controller.conversation import TalkOptions
from everyrank.controller.debugger import DebugOptions
from everyrank.controller.interrupts import Interrupts
from everyrank.controller.jobs import Jobs
from everyrank.controller.launch_context import launch_context
from everyrank.controller.launching import Launching
from everyrank.controller.pool import Pool
from everyrank.controller.reruns import Reruns
from everyrank.controller.warn import warn
from everyrank.controller.without_world import TestEnd, WithoutWorld
from everyrank.declare import run_gpus
from everyrank.declare.job import Job
from everyrank.declare.stash import DECLARATION, FOUND_GPUS, TIMEOUT, is_declared
from everyrank.errors import MisuseError
from everyrank.launch import surroundings
from everyrank.launch.keeper import die_with_parent
from everyrank.launch.limits import advice
from everyrank.model.fault import Fault
from everyrank.model.mutation import Observe
from everyrank.model.outcome import Rule
from everyrank.options import MutateOptions, Options
from everyrank.resources import holders, leases
from everyrank.sweeps.sweep import Swept, sweep
from everyrank.verdict.fates import Fates
from everyrank.verdict.report import add_teardown, pass_on_warnings, reports
from everyrank.verdict.result import test_result
from everyrank.verdict.rules import Verdict

if TYPE_CHECKING:
    from everyrank.mutants.mutating import Mutating


class Controller:
    """A pytest plugin that runs jobs and logs verdicts, from the end of collection to the end of the run."""

    def __init__(self, session: pytest.Session, options: Options) -> None:
        surroundings.mend()
        self._session = session
        self._config = session.config
        terminal = self._terminal_for_debugger
        context = launch_context(
            session, lambda: self._config.pluginmanager.unregister(self), terminal, options.rank_cores
        )
        self._launching = Launching(session.config, options, context)
        debug = DebugOptions(bool(session.config.getoption("usepdb", False)), options.pdb_rank, terminal)
        talk_options = TalkOptions(_print_live, debug, options.death_stacks)
        self._pool = Pool(session, self._launching, talk_options)
        run = holders.run_of(session.config)
        self._leases = leases.Leases(leases.capacity(), leases.folder(), self._print, run)
        self._run_gpus = run_gpus.start(self._print_and_warn)
        self._jobs = Jobs(session.items, options, self._run_gpus)
        self._interrupts = Interrupts(is_worker=hasattr(session.config, "workerinput"))
        self._attempts = Attempts(
            session,
            options,
            self._jobs,
            self._pool,
            self._run_gpus,
            self._leases,
            self._interrupts,
            talk_options,
        )
        self._wants_results = bool(self._config.hook.pytest_everyrank_result.get_hookimpls())
        self._without_world = WithoutWorld(options, self._run_gpus, self._wants_results)
        self._reruns = Reruns(session.config, self._reports)
        self._mutating = None if options.mutate is None else _mutating(session, options.mutate)

    # --- the run -----------------------------------------------------------------------------------

    def open(self) -> None:
        """Start the launcher, right after collection, before any test has run."""
        parent = getattr(self._config, "workerinput", {}).get("everyrank_parent")
        if parent is not None and parent == os.getppid():
            # A worker of pytest-xdist must end when the pytest that started it ends. Otherwise it would first finish
            # its test, whose reports no process reads any more: that takes up to 15 s, with all its ranks.
            die_with_parent(parent)
        self._launching.open()
        self._interrupts.open()
        hosts = self._launching.launcher.hosts
        if hosts.several:
            self._run_gpus.on_hosts = True
            self._config.stash[FOUND_GPUS] = hosts.count_gpus()
            if hasattr(self._config, "workeroutput"):
                self._config.workeroutput["everyrank_gpus"] = self._config.stash[FOUND_GPUS]

    def close(self) -> None:
        """End every world and leave nothing behind."""
        try:
            with contextlib.closing(self._launching):
                self._pool.close()
        finally:
            self._run_gpus.close()
            self._leases.close()
            self._interrupts.close()

    # --- one test ----------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        self._pool.give_back_if_wanted()
        if not is_declared(item):
            return None
        if not self._reruns.run(item, nextitem):
            self._run_once(item, nextitem)
        self._interrupts.obey()
        return True

    def _run_once(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Run a test that no other plugin may run again, and log its reports."""
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in self._reports(item, nextitem):
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _reports(self, item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
        """Run a test once and return the reports to log."""
        self._interrupts.obey()  # the first attempt was interrupted: there is no second
        end = self._run(item, nextitem)
        self._tear_down_here(item, end.reports, nextitem)
        if end.result is not None:
            end.result.worlds_up = self._pool.up
            item.ihook.pytest_everyrank_result(item=item, result=msgspec.to_builtins(end.result), reports=end.reports)
        return end.reports

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> bool | None:
        if DECLARATION not in item.stash:
            return None
        item.stash[TIMEOUT] = settings.timeout
        return True

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_cancel_timer(self, item: pytest.Item) -> bool | None:
        return True if DECLARATION in item.stash else None

    def _run(self, item: pytest.Item, nextitem: pytest.Item | None) -> TestEnd:
        try:
            job = self._jobs.job(item)
            impossible = self._launching.cannot_start(job)
            watch = None if self._mutating is None or job.declared.faults else self._mutating.begin(job)
        except MisuseError as error:
            return self._without_world.refused(item, str(error))
        return self._without_world.end(job, impossible) or self._in_world(job, self._jobs.find(nextitem), watch)

    def _in_world(self, job: Job, following: Job | None, watch: Observe | None) -> TestEnd:
        started = time.time()
        try:
            verdict, fates, context = self._attempts.run(job, following, watch)
        except OSError as error:
            return self._without_world.refused(job.item, f"the world could not be started: {advice(error)}")
        except MisuseError as error:
            return self._without_world.refused(job.item, f"the world could not be started: {error}")
        swept = Swept(verdict, fates) if job.swept is None else self._sweep(job, job.swept, following, verdict, fates)
        verdict, fates = swept.verdict, swept.fates
        if verdict.rule is Rule.INTERRUPTED:
            self._print(f"{job.nodeid}: {verdict.headline.splitlines()[0]}")  # the reports come at the end of the run
        logged = reports(verdict, fates, context)
        if swept.remark:
            logged[-2].sections.append(("faults", swept.remark))
        for report in logged:
            report.start, report.stop = started, time.time()
        pass_on_warnings(self._config, verdict, fates, job)
        self._obey_requests(fates)
        result = test_result(verdict, fates, context) if self._wants_results else None
        if result is not None:
            result.sweep = swept.part
        if (
            self._mutating is not None
            and watch is not None
            and verdict.outcome == "passed"
            and logged[-1].outcome == "passed"
        ):
            part = self._mutating.try_mutants(job, fates, functools.partial(self._attempts.run_changed, job))
            self._mutating.attach(part, logged, result)
        return TestEnd(logged, result)

    def _sweep(self, job: Job, fault: Fault, following: Job | None, verdict: Verdict, fates: Fates) -> Swept:
        return sweep(fault, verdict, fates, functools.partial(self._attempts.run_point, job, following))

    def _tear_down_here(
        self, item: pytest.Item, logged: list[pytest.TestReport], nextitem: pytest.Item | None
    ) -> None:
        """Tear down the fixtures of this process that the next test does not need, as pytest would."""
        needed = None if self._stops_after(logged) else nextitem
        call = pytest.CallInfo.from_call(
            lambda: self._session._setupstate.teardown_exact(needed),
            "teardown",
            reraise=(pytest.exit.Exception, KeyboardInterrupt),
        )
        if call.excinfo is not None:
            add_teardown(logged[-1], pytest.TestReport.from_item_and_call(item, call), item)

    def _stops_after(self, logged: list[pytest.TestReport]) -> bool:
        """Return whether the run stops after these reports, as with ``-x``: then pytest tears everything down."""
        failed, most = sum(report.failed for report in logged[:-1]), self._config.getoption("maxfail", 0) or 0
        too_many = failed > 0 and 0 < most <= self._session.testsfailed + failed
        return bool(too_many or self._session.shouldfail or self._session.shouldstop)

    def _obey_requests(self, fates: Fates) -> None:
        """Stop the run if a rank asked for it."""
        for fate in fates.ranks:
            if fate.record is None:
                continue
            if fate.record.exit_request is not None:
                pytest.exit(f"rank {fate.rank}: {fate.record.exit_request}", returncode=fate.record.exit_code)
            if fate.record.stop_request:
                self._session.shouldstop = fate.record.stop_request
            if fate.record.fail_request:
                self._session.shouldfail = fate.record.fail_request

    # --- what the user sees meanwhile ----------------------------------------------------------------

    def _print(self, text: str) -> None:
        with self._terminal_for_debugger():
            holders.print_line(self._config, text)

    def _print_and_warn(self, text: str) -> None:
        self._print(text)
        warn(self._config, text)

    @contextlib.contextmanager
    def _terminal_for_debugger(self) -> Iterator[None]:
        manager: Any = self._config.pluginmanager.getplugin("capturemanager")
        if manager is not None:
            manager.suspend(in_=True)
        try:
            yield
        finally:
            if manager is not None:
                manager.resume()
                manager.suspend(in_=False)


def _mutating(session: pytest.Session, request: MutateOptions) -> Mutating:
    from everyrank.mutants.mutating import Mutating

    return Mutating(session.config, request, sum(map(is_declared, session.items)))


def _print_live(rank: int, line: bytes) -> None:
    """Print a line of a rank at once, with its rank (``-s``)."""
    sys.stdout.write(f"[rank {rank}] {line.decode('utf-8', 'replace')}\n")
    sys.stdout.flush()
