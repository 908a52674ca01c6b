"""The controller: the pytest process, which gives each multi-rank test a world and logs one verdict."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from everyrank import claims, holders, leases, skips
from everyrank.declaration import SIZE_PARAMETER
from everyrank.desk import DebugOptions
from everyrank.errors import MisuseError
from everyrank.gpus import GpuLease
from everyrank.launch.keeper import die_with_parent
from everyrank.liveworld import LiveWorld
from everyrank.options import Options, leaks_of
from everyrank.record import Order
from everyrank.repeat import lasting_id
from everyrank.report import Telling, pass_on_warnings, refusal, reports
from everyrank.run import Run
from everyrank.stash import DECLARATION, FIXTURES, MISUSE, TIMEOUT
from everyrank.told import result_without_world, test_result
from everyrank.torchrun import reserved_port
from everyrank.verdict import Fate, Fates, Verdict, judge
from everyrank.world import rank_seed
from everyrank.worlds import Worlds, warn, why_not_kept

#: A test that has ended: the result for other plugins (empty if none implements the hook), and the reports to log.
_Ended = tuple[dict[str, Any], list[pytest.TestReport]]

_GOOD = ("passed", "skipped", "xfailed", "xpassed")


class Controller:
    """Gives orders and logs verdicts. A pytest plugin from the end of collection to the end of the run."""

    def __init__(self, session: pytest.Session, options: Options) -> None:
        self._session = session
        self._config = session.config
        self._options = options
        self._worlds = Worlds(
            session,
            options,
            leave_behind=lambda: self._config.pluginmanager.unregister(self),
            see_off=self._see_off,
            terminal=self._terminal_for_debugger,
        )
        run = holders.run_of(session.config)
        self._leases = leases.Leases(leases.capacity(), leases.folder(), self._say, run)
        self._claims = claims.start(self._say_and_warn)
        self._places = {item: index for index, item in enumerate(session.items)}
        self._occurrences = _occurrences(session.items)
        self._tests = 0
        hook = self._config.hook
        self._wants_results = bool(
            hook.pytest_everyrank_result.get_hookimpls() or hook.pytest_everyrank_told.get_hookimpls()
        )
        self._debugging = bool(self._config.getoption("usepdb", False) or self._config.getoption("trace", False))

    # --- the run -----------------------------------------------------------------------------------

    def open(self) -> None:
        """Right after collection, before any test has run."""
        parent = getattr(self._config, "workerinput", {}).get("everyrank_parent")
        if parent is not None and parent == os.getppid():
            # A worker of pytest-xdist ends with the pytest that started it, as a run without workers would. By
            # itself it waits for its test, whose reports nobody reads any more: for up to 15 s, with all its ranks.
            die_with_parent(parent)
        self._worlds.open()

    def close(self) -> None:
        """End every world, and leave nothing behind."""
        try:
            self._worlds.close()
        finally:
            self._claims.close()
            self._leases.close()

    def _see_off(self, world: LiveWorld) -> None:
        """Let an idle world go. A fixture's teardown that fails then is nobody's failure, and yet one."""
        run = self._watcher(world, [], None, "")
        run.fates = Fates([Fate(rank) for rank in range(len(world.seats))])
        run.dismiss()
        self._worlds.collect_coverage(world)
        for fate in run.fates.ranks:
            if problem := run.fates.late.get(fate.rank) or fate.out_of_order:
                # No test can be told of it any more, and yet the run must not be green.
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

    def _without_world(self, item: pytest.Item) -> _Ended | None:
        """For a test that needs no world to be judged: misused, or skipped beforehand."""
        if MISUSE in item.stash:
            return self._refused(item, item.stash[MISUSE])
        try:
            leaks_of(item, self._options)
            reason = self._skip_reason(item)
            return self._skipped(item, reason) if reason else self._missing(item)
        except MisuseError as error:
            return self._refused(item, str(error))

    def _skip_reason(self, item: pytest.Item) -> str:
        for mark in item.iter_markers("skip"):
            return str(mark.kwargs.get("reason") or (mark.args[0] if mark.args else "unconditional skip"))
        for mark in item.iter_markers("skipif"):
            conditions = [*mark.args, mark.kwargs.get("condition", False)]
            if all(isinstance(one, bool) for one in conditions) and any(conditions) and "reason" in mark.kwargs:
                return str(mark.kwargs["reason"])
        return ""

    def _missing(self, item: pytest.Item) -> _Ended | None:
        """For a test that needs what this machine does not have."""
        group = "process_group" in item.stash[FIXTURES]
        declared = item.stash[DECLARATION]
        reason, wants_gpus = self._claims.missing(declared, self._size(item), group)
        if not reason:
            return None
        required = self._options.require_gpus
        if wants_gpus and skips.needs(declared, self._size(item)).least <= required:
            return self._refused(item, f"{reason}; --require-gpus={required}: this is no skip")
        ended = self._skipped(item, reason)
        ended[1][0].user_properties.append((claims.SKIPPED_FOR, reason))
        return ended

    def _skipped(self, item: pytest.Item, reason: str) -> _Ended:
        path, line, _ = item.location
        return self._plain(item, "skipped", (path, (line or 0) + 1, f"Skipped: {reason}"))

    def _refused(self, item: pytest.Item, text: str) -> _Ended:
        return self._plain(item, "failed", refusal(item, text))

    def _plain(self, item: pytest.Item, outcome: Any, longrepr: Any) -> _Ended:
        keywords: Any = dict.fromkeys(item.keywords, 1)
        at = time.time()
        more: Any = {"start": at, "stop": at, "user_properties": item.user_properties}
        logged = [
            pytest.TestReport(item.nodeid, item.location, keywords, outcome, longrepr, "setup", **more),
            pytest.TestReport(item.nodeid, item.location, keywords, "passed", None, "teardown", **more),
        ]
        rule = "skipped" if outcome == "skipped" else "refused"
        return (result_without_world(rule, item, self._options.seed) if self._wants_results else {}), logged

    def _tear_down_here(self, logged: list[pytest.TestReport], nextitem: pytest.Item | None) -> None:
        """Fixtures that single-process tests left up in this process, for as long as pytest would have."""
        try:
            self._session._setupstate.teardown_exact(nextitem)
        except Exception as error:
            logged[-1].outcome = "failed"
            logged[-1].longrepr = f"a fixture of the controller failed in its teardown: {error!r}"

    def _in_world(self, item: pytest.Item, nextitem: pytest.Item | None) -> _Ended:
        started = time.time()
        try:
            verdict, fates, telling = self._judged(item, nextitem)
        except (OSError, MisuseError) as error:
            return self._refused(item, f"the world could not be started: {error}")
        logged = reports(verdict, fates, telling)
        for report in logged:
            report.start, report.stop = started, time.time()
        pass_on_warnings(self._config, verdict, fates, item)
        self._obey_requests(fates)
        return (test_result(verdict, fates, telling) if self._wants_results else {}), logged

    def _judged(self, item: pytest.Item, nextitem: pytest.Item | None) -> tuple[Verdict, Fates, Telling]:
        fresh = self._is_fresh(item)
        warm = None if fresh else self._worlds.warm(self._key(item))
        served = tuple(warm.served) if warm else ()
        ready = warm or self._worlds.take_spare(self._key(item))
        verdict, fates = self._attempt(item, nextitem, ready, keep=not fresh)
        if (ready is not None and (fates.broken_before or not fates.began)) or (
            fates.launcher_lost and not fates.began
        ):
            # That is its neighbours' affair. A keeper that was killed may take a moment to be gone.
            # A rank that ended after its order, but before it began, is not: another that had begun may have done it.
            served = ()
            verdict, fates = self._attempt(item, nextitem, None, keep=not fresh)
        alone = False
        unsure = served and verdict.outcome not in _GOOD and not fates.launcher_lost
        if unsure and self._options.run_alone and not self._debugging:
            again, _ = self._attempt(item, nextitem, None, keep=False)
            alone = again.outcome in _GOOD
        telling = Telling(item, self._options.seed, served, alone, leaks_of(item, self._options))
        return verdict, fates, telling

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

    def _may_be_kept(self, run: Run, verdict: Verdict) -> bool:
        """Whether the world may serve another test; otherwise its fates say why not."""
        fates = run.fates
        fates.not_kept = why_not_kept(verdict, fates) or ("a rank ended after its record" if run.world.broken else "")
        if not fates.not_kept and not run.close_up():
            late = {fate.rank: fate.out_of_order for fate in fates.ranks if fate.out_of_order}
            fates.not_kept = "; ".join(f"rank {rank} {why}" for rank, why in late.items()) or "a rank left"
        return not fates.not_kept

    @contextlib.contextmanager
    def _gpus_for(self, item: pytest.Item, ready: LiveWorld | None) -> Iterator[GpuLease | None]:
        """The world's, or new ones, which are waited for while this process holds none. They go with the world."""
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
        wanted = skips.needs(item.stash[DECLARATION], self._size(item)).most
        return wanted > 0 and bool(self._claims.gpus)

    def _follows(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Whether the next test may have this one's world."""
        if nextitem is None or DECLARATION not in nextitem.stash or nextitem.stash[DECLARATION].fresh:
            return False
        return self._key(nextitem) == self._key(item)

    def _watcher(self, world: LiveWorld, orders: list[Order], limit: float | None, source: str) -> Run:
        return Run(
            world,
            orders,
            limit,
            source,
            live=_print_live,
            debug=DebugOptions(
                on_failure=bool(self._config.getoption("usepdb", False)),
                rank=self._options.pdb_rank,
                terminal=self._terminal_for_debugger,
            ),
        )

    def _limit(self, item: pytest.Item) -> tuple[float | None, str]:
        """The deadline in seconds and where it comes from. A person at a debugger has none."""
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
                index=self._places.get(item, -1),
                next_nodeid=follows.nodeid if follows is not None else None,
                next_index=self._places.get(follows, -1) if follows is not None else -1,
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
                leaks=leaks_of(item, self._options),
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
        """Tests of one key may share a world."""
        declared = item.stash[DECLARATION]
        group = self._claims.backend(declared, self._size(item)) if "process_group" in item.stash[FIXTURES] else None
        where = str(item.path) if self._worlds.launcher.name == "spawn" else ""
        agent = ""
        if "warm_rpc_agent" in item.stash[FIXTURES]:
            agent = "agent " + repr([mark.kwargs for mark in item.iter_markers("rpc")])
        needs = skips.needs(declared, self._size(item))
        return (self._size(item), declared.device, needs, group, agent, where, declared.company)

    def _more_worlds_follow(self, item: pytest.Item) -> bool:
        """Whether a later test needs another world than this one."""
        here, later = self._key(item), self._session.items[self._places.get(item, -1) + 1 :]
        tests = (test for test in later if DECLARATION in test.stash and MISUSE not in test.stash)
        return any(self._is_fresh(test) or self._key(test) != here for test in tests)

    def _is_fresh(self, item: pytest.Item) -> bool:
        return item.stash[DECLARATION].fresh or self._options.fresh

    def _start_spare(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """Fork the next test's ranks while this test waits for its own, if that test will need new processes."""
        if nextitem is None or DECLARATION not in nextitem.stash or self._debugging:
            return
        if MISUSE in nextitem.stash or self._needs_gpus(nextitem):
            return  # what waits for GPUs is started when it has them
        # A world in which an RPC agent has run is not kept.
        spent = "rpc_agent" in item.stash[FIXTURES] and self._key(item) == self._key(nextitem)
        if spent or self._is_fresh(nextitem):
            self._worlds.start_spare(nextitem, self._size(nextitem), self._key(nextitem))

    def _say(self, text: str) -> None:
        with self._terminal_for_debugger():
            holders.say(self._config, text)

    def _say_and_warn(self, text: str) -> None:
        self._say(text)
        warn(self._config, text)

    # --- what ranks ask of the whole run -----------------------------------------------------------

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
    """Which of the items of its name each is; pytest allows several."""
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
    """``-s``: a rank's line, as it comes, with its rank."""
    sys.stdout.write(f"[rank {rank}] {line.decode('utf-8', 'replace')}\n")
    sys.stdout.flush()
