"""The controller: the pytest process. It gives each multi-rank test a world and logs one verdict."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from everyrank.controller.debugger import DebugOptions
from everyrank.controller.live_world import LiveWorld
from everyrank.controller.watch import Attempt
from everyrank.controller.worlds import Worlds, warn, why_not_kept
from everyrank.declare import claims, requirements
from everyrank.declare.declaration import SIZE_PARAMETER
from everyrank.declare.stash import DECLARATION, FIXTURES, MISUSE, TIMEOUT
from everyrank.errors import MisuseError
from everyrank.launch.keeper import die_with_parent
from everyrank.model.ranks import rank_seed
from everyrank.options import Options, leaks_action
from everyrank.rank.torchrun import reserved_port
from everyrank.resources import holders, leases
from everyrank.resources.gpus.gpu_leases import GpuLease
from everyrank.verdict.repeat import lasting_id
from everyrank.verdict.report import ReportContext, pass_on_warnings, refusal, reports
from everyrank.verdict.result import result_without_world, test_result
from everyrank.verdict.rules import Fate, Fates, Verdict, judge
from everyrank.wire.messages import Order

#: The end of a test: its result for other plugins (empty if none implements the hook), and the reports to log.
_TestEnd = tuple[dict[str, Any], list[pytest.TestReport]]

_GOOD = ("passed", "skipped", "xfailed", "xpassed")


class Controller:
    """A pytest plugin that gives orders and logs verdicts, from the end of collection to the end of the run."""

    def __init__(self, session: pytest.Session, options: Options) -> None:
        self._session = session
        self._config = session.config
        self._options = options
        self._worlds = Worlds(
            session,
            options,
            leave_behind=lambda: self._config.pluginmanager.unregister(self),
            dismiss=self._dismiss,
            terminal=self._terminal_for_debugger,
        )
        run = holders.run_of(session.config)
        self._leases = leases.Leases(leases.capacity(), leases.folder(), self._print, run)
        self._claims = claims.start(self._print_and_warn)
        self._indexes = {item: index for index, item in enumerate(session.items)}
        self._occurrences = _occurrences(session.items)
        self._tests = 0
        hook = self._config.hook
        self._wants_results = bool(
            hook.pytest_everyrank_result.get_hookimpls() or hook.pytest_everyrank_told.get_hookimpls()
        )
        self._debugging = bool(self._config.getoption("usepdb", False) or self._config.getoption("trace", False))

    # --- the run -----------------------------------------------------------------------------------

    def open(self) -> None:
        """Start the launcher, right after collection, before any test has run."""
        parent = getattr(self._config, "workerinput", {}).get("everyrank_parent")
        if parent is not None and parent == os.getppid():
            # A worker of pytest-xdist must end when the pytest that started it ends. Otherwise it would first finish
            # its test, whose reports no process reads any more: that takes up to 15 s, with all its ranks.
            die_with_parent(parent)
        self._worlds.open()

    def close(self) -> None:
        """End every world and leave nothing behind."""
        try:
            self._worlds.close()
        finally:
            self._claims.close()
            self._leases.close()

    def _dismiss(self, world: LiveWorld) -> None:
        """End an idle world. If a teardown fails now, no test can report it, so the run is marked failed."""
        run = self._watcher(world, [], None, "")
        run.fates = Fates([Fate(rank) for rank in range(len(world.seats))])
        run.dismiss()
        self._worlds.collect_coverage(world)
        for fate in run.fates.ranks:
            if problem := run.fates.late.get(fate.rank) or fate.out_of_order:
                # No test can report this any more, but the run must not be green.
                self._session.testsfailed += 1
                warn(
                    self._config,
                    f"a wider fixture's teardown failed on rank {fate.rank} when its world ended:\n{problem}",
                )

    # --- one test ----------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        if DECLARATION not in item.stash and MISUSE not in item.stash:
            return None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        result, logged = self._without_world(item) or self._in_world(item, nextitem)
        self._tear_down_here(logged, nextitem)
        if result:
            result["worlds_up"] = self._worlds.up
            item.ihook.pytest_everyrank_result(item=item, result=result, reports=logged)
            item.ihook.pytest_everyrank_told(item=item, told=result, reports=logged)
        for report in logged:
            item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return True

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_set_timer(self, item: pytest.Item, settings: Any) -> bool | None:
        if DECLARATION not in item.stash:
            return None
        item.stash[TIMEOUT] = settings.timeout
        return True

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_cancel_timer(self, item: pytest.Item) -> bool | None:
        return True if DECLARATION in item.stash else None

    def _without_world(self, item: pytest.Item) -> _TestEnd | None:
        """Return the end of a test that gets no world, because it is misused or skipped; None for any other."""
        if MISUSE in item.stash:
            return self._refused(item, item.stash[MISUSE])
        try:
            leaks_action(item, self._options)
            reason = self._skip_reason(item)
            return self._skipped(item, reason) if reason else self._missing(item)
        except MisuseError as error:
            return self._refused(item, str(error))

    def _skip_reason(self, item: pytest.Item) -> str:
        for mark in item.iter_markers("skip"):
            return str(mark.kwargs.get("reason") or (mark.args[0] if mark.args else "unconditional skip"))
        for mark in item.iter_markers("skipif"):
            conditions = [*mark.args, mark.kwargs.get("condition", False)]
            if (
                all(isinstance(condition, bool) for condition in conditions)
                and any(conditions)
                and "reason" in mark.kwargs
            ):
                return str(mark.kwargs["reason"])
        return ""

    def _missing(self, item: pytest.Item) -> _TestEnd | None:
        """Return the end of a test that needs what this machine does not have; None for any other."""
        group = "process_group" in item.stash[FIXTURES]
        declared = item.stash[DECLARATION]
        reason, wants_gpus = self._claims.missing(declared, self._size(item), group)
        if not reason:
            return None
        required = self._options.require_gpus
        if wants_gpus and requirements.needs(declared, self._size(item)).least <= required:
            return self._refused(item, f"{reason}; with --require-gpus={required} this is not a skip")
        ended = self._skipped(item, reason)
        ended[1][0].user_properties.append((claims.SKIPPED_FOR, reason))
        return ended

    def _skipped(self, item: pytest.Item, reason: str) -> _TestEnd:
        path, line, _ = item.location
        return self._plain(item, "skipped", (path, (line or 0) + 1, f"Skipped: {reason}"))

    def _refused(self, item: pytest.Item, text: str) -> _TestEnd:
        return self._plain(item, "failed", refusal(item, text))

    def _plain(self, item: pytest.Item, outcome: Any, longrepr: Any) -> _TestEnd:
        keywords: Any = dict.fromkeys(item.keywords, 1)
        now = time.time()
        fields: Any = {"start": now, "stop": now, "user_properties": item.user_properties}
        logged = [
            pytest.TestReport(item.nodeid, item.location, keywords, outcome, longrepr, "setup", **fields),
            pytest.TestReport(item.nodeid, item.location, keywords, "passed", None, "teardown", **fields),
        ]
        rule = "skipped" if outcome == "skipped" else "refused"
        return (result_without_world(rule, item, self._options.seed) if self._wants_results else {}), logged

    def _tear_down_here(self, logged: list[pytest.TestReport], nextitem: pytest.Item | None) -> None:
        """Tear down the fixtures of this process that the next test does not need, as pytest would."""
        try:
            self._session._setupstate.teardown_exact(nextitem)
        except Exception as error:
            logged[-1].outcome = "failed"
            logged[-1].longrepr = f"a fixture of the controller failed in its teardown: {error!r}"

    def _in_world(self, item: pytest.Item, nextitem: pytest.Item | None) -> _TestEnd:
        started = time.time()
        try:
            verdict, fates, context = self._judged(item, nextitem)
        except (OSError, MisuseError) as error:
            return self._refused(item, f"the world could not be started: {error}")
        logged = reports(verdict, fates, context)
        for report in logged:
            report.start, report.stop = started, time.time()
        pass_on_warnings(self._config, verdict, fates, item)
        self._obey_requests(fates)
        return (test_result(verdict, fates, context) if self._wants_results else {}), logged

    def _judged(self, item: pytest.Item, nextitem: pytest.Item | None) -> tuple[Verdict, Fates, ReportContext]:
        fresh = self._is_fresh(item)
        warm = None if fresh else self._worlds.warm(self._key(item))
        served = tuple(warm.served) if warm else ()
        ready = warm or self._worlds.take_spare(self._key(item))
        verdict, fates = self._attempt(item, nextitem, ready, keep=not fresh)
        if (ready is not None and (fates.broken_before or not fates.began)) or (
            fates.launcher_lost and not fates.began
        ):
            # An earlier test broke this world; or the keeper was killed, which may be noticed late. This test gets a
            # new world. A rank that ended after its order, before it began, counts: another rank may have ended it.
            served = ()
            verdict, fates = self._attempt(item, nextitem, None, keep=not fresh)
        alone = False
        unsure = served and verdict.outcome not in _GOOD and not fates.launcher_lost
        if unsure and self._options.run_alone and not self._debugging:
            again, _ = self._attempt(item, nextitem, None, keep=False)
            alone = again.outcome in _GOOD
        context = ReportContext(item, self._options.seed, served, alone, leaks_action(item, self._options))
        return verdict, fates, context

    def _attempt(
        self, item: pytest.Item, nextitem: pytest.Item | None, ready: LiveWorld | None, keep: bool
    ) -> tuple[Verdict, Fates]:
        size = self._size(item)
        with (
            self._gpus_for(item, ready) as lease,
            self._leases.held(size, item.nodeid) as waited,
            reserved_port() as port,
        ):
            keep = keep and (lease is None or self._follows(item, nextitem))
            world = ready or self._worlds.start(item, size, self._key(item), lease)
            folder = os.path.join(self._worlds.launcher.folder, f"test-{self._tests}")
            self._tests += 1
            orders = self._orders(item, nextitem, folder, port, keep, lease)
            limit, source = self._limit(item)
            run = self._watcher(world, orders, limit, source)
            try:
                self._start_spare(item, nextitem)
                fates = run.watch()
                fates.waited = waited
                self._worlds.note_imports(fates, lambda: self._more_worlds_follow(item))
                verdict = judge(fates)
                if keep and self._may_be_kept(run, verdict):
                    world.served.append(item.nodeid)
                    self._worlds.keep(world)
                else:
                    run.leave()
                    self._worlds.collect_coverage(world)
            except BaseException:
                world.end()
                raise
            finally:
                _remove(folder)
            return judge(fates), fates

    def _may_be_kept(self, run: Attempt, verdict: Verdict) -> bool:
        """Return whether the world may serve another test; if not, note the reason in its fates."""
        fates = run.fates
        fates.not_kept = why_not_kept(verdict, fates) or ("a rank ended after its record" if run.world.broken else "")
        if not fates.not_kept and not run.close_up():
            late = {fate.rank: fate.out_of_order for fate in fates.ranks if fate.out_of_order}
            fates.not_kept = "; ".join(f"rank {rank} {reason}" for rank, reason in late.items()) or "a rank left"
        return not fates.not_kept

    @contextlib.contextmanager
    def _gpus_for(self, item: pytest.Item, ready: LiveWorld | None) -> Iterator[GpuLease | None]:
        """Hold the GPUs of a world that is ready, or lease GPUs for a new one.

        The lease ends with the world. While this process waits for GPUs, it holds none.
        """
        lease = ready.lease if ready is not None else None
        if ready is None and self._needs_gpus(item):
            self._worlds.dismiss_with_gpus()
            lease = self._claims.take(item.stash[DECLARATION], self._size(item))
        try:
            yield lease
        except BaseException:
            if lease is not None:
                lease.close()
            raise

    def _needs_gpus(self, item: pytest.Item) -> bool:
        wanted = requirements.needs(item.stash[DECLARATION], self._size(item)).most
        return wanted > 0 and bool(self._claims.gpus)

    def _follows(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Return whether the next test may run in the world of this one."""
        if nextitem is None or DECLARATION not in nextitem.stash or nextitem.stash[DECLARATION].fresh:
            return False
        return self._key(nextitem) == self._key(item)

    def _watcher(self, world: LiveWorld, orders: list[Order], limit: float | None, source: str) -> Attempt:
        return Attempt(
            world,
            orders,
            limit,
            source,
            print_line=_print_live,
            debug=DebugOptions(
                on_failure=bool(self._config.getoption("usepdb", False)),
                rank=self._options.pdb_rank,
                terminal=self._terminal_for_debugger,
            ),
        )

    def _limit(self, item: pytest.Item) -> tuple[float | None, str]:
        """Return the deadline in seconds and its source. While a person debugs, there is none."""
        if self._debugging:
            return None, ""
        declared = item.stash[DECLARATION].timeout
        if declared is not None:
            return declared, item.stash[DECLARATION].timeout_from
        if TIMEOUT in item.stash:
            return item.stash[TIMEOUT], "pytest-timeout"
        return self._options.timeout, "everyrank_timeout"

    def _orders(
        self,
        item: pytest.Item,
        nextitem: pytest.Item | None,
        folder: str,
        port: int,
        keep: bool,
        lease: GpuLease | None,
    ) -> list[Order]:
        declared = item.stash[DECLARATION]
        follows = nextitem if keep and self._follows(item, nextitem) else None
        forked = self._worlds.launcher.name == "fork"
        size, named = self._size(item), lasting_id(item)
        return [
            Order(
                number=self._tests,
                nodeid=item.nodeid,
                occurrence=self._occurrences.get(item, 0),
                index=self._indexes.get(item, -1),
                next_nodeid=follows.nodeid if follows is not None else None,
                next_index=self._indexes.get(follows, -1) if follows is not None else -1,
                rank=rank,
                size=size,
                backend=self._claims.backend(declared, size),
                device=claims.device(declared, lease, rank),
                visible=claims.visible(lease, rank, forked),
                seed=rank_seed(named, self._options.seed, rank),
                folder=folder,
                port=port,
                keep=keep,
                group="process_group" in item.stash[FIXTURES],
                leaks=leaks_action(item, self._options),
                debug_rank=self._options.pdb_rank,
                launcher=self._worlds.launcher.name,
            )
            for rank in range(size)
        ]

    def _size(self, item: pytest.Item) -> int:
        callspec = getattr(item, "callspec", None)
        chosen = callspec.params.get(SIZE_PARAMETER) if callspec is not None else None
        declared = item.stash[DECLARATION].sizes
        return int(chosen or (declared[0] if declared else self._options.size))

    # --- worlds ------------------------------------------------------------------------------------

    def _key(self, item: pytest.Item) -> tuple[object, ...]:
        """Return the key of a test's world: tests with equal keys may share one."""
        declared = item.stash[DECLARATION]
        group = self._claims.backend(declared, self._size(item)) if "process_group" in item.stash[FIXTURES] else None
        path = str(item.path) if self._worlds.launcher.name == "spawn" else ""
        agent = ""
        if "warm_rpc_agent" in item.stash[FIXTURES]:
            agent = "agent " + repr([mark.kwargs for mark in item.iter_markers("rpc")])
        needs = requirements.needs(declared, self._size(item))
        return (self._size(item), declared.device, needs, group, agent, path, declared.company)

    def _more_worlds_follow(self, item: pytest.Item) -> bool:
        """Return whether a later test needs another world than this one."""
        here, later = self._key(item), self._session.items[self._indexes.get(item, -1) + 1 :]
        tests = (test for test in later if DECLARATION in test.stash and MISUSE not in test.stash)
        return any(self._is_fresh(test) or self._key(test) != here for test in tests)

    def _is_fresh(self, item: pytest.Item) -> bool:
        return item.stash[DECLARATION].fresh or self._options.fresh

    def _start_spare(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Fork the next test's ranks while this test waits for its own, if that test will need new processes."""
        if nextitem is None or DECLARATION not in nextitem.stash or self._debugging:
            return
        if MISUSE in nextitem.stash or self._needs_gpus(nextitem):
            return  # a world with GPUs is started when it has them
        # A world in which an RPC agent has run is not kept.
        spent = "rpc_agent" in item.stash[FIXTURES] and self._key(item) == self._key(nextitem)
        if spent or self._is_fresh(nextitem):
            self._worlds.start_spare(nextitem, self._size(nextitem), self._key(nextitem))

    def _print(self, text: str) -> None:
        with self._terminal_for_debugger():
            holders.print_line(self._config, text)

    def _print_and_warn(self, text: str) -> None:
        self._print(text)
        warn(self._config, text)

    # --- requests of ranks to the run -----------------------------------------------------------

    def _obey_requests(self, fates: Fates) -> None:
        for fate in fates.ranks:
            if fate.record is None:
                continue
            if fate.record.exit_request is not None:
                pytest.exit(f"rank {fate.rank}: {fate.record.exit_request}")
            if fate.record.stop_request:
                self._session.shouldstop = fate.record.stop_request

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


def _occurrences(items: list[pytest.Item]) -> dict[pytest.Item, int]:
    """Number the items that share a node id, which pytest allows."""
    seen: Counter[str] = Counter()
    found = {}
    for item in items:
        found[item] = seen[item.nodeid]
        seen[item.nodeid] += 1
    return found


def _remove(folder: str) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


def _print_live(rank: int, line: bytes) -> None:
    """Print a line of a rank at once, with its rank (``-s``)."""
    sys.stdout.write(f"[rank {rank}] {line.decode('utf-8', 'replace')}\n")
    sys.stdout.flush()
