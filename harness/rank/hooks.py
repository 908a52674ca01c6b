"""pytest's hooks on a rank: they file the phases and the warnings of its test."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Generator
from typing import Any

import msgspec
import pytest
from _pytest.runner import runtestprotocol
from everyrank.faults.text import is_planned
from everyrank.leaks.snapshot import LeakWatch
from everyrank.rank import examples, recorder
from everyrank.rank.failure_text import describe_failure
from everyrank.rank.hints import add_hint, hint
from everyrank.rank.seeds import seed_generators
from everyrank.rank.warnings_filed import as_warned, is_ignored
from everyrank.wire.messages import Deadline, FromRank, Order, Phase, PhaseEnded, Warned
from everyrank.wire.progress import Tells
from everyrank.wire.truncate import truncate

#: The texts of gloo, when a peer is gone.
_GLOO = re.compile(r"gloo|peer", re.IGNORECASE)


class RankHooks:
    """A pytest plugin that all forks of a zygote share; ``start`` gives it its process, ``begin`` its test."""

    def __init__(self, config: pytest.Config, group_is_open: Callable[[], bool]) -> None:
        self.phases: list[Phase] = []
        self.warnings: list[Warned] = []
        self.calling = False
        self._subtest: Phase | None = None
        self._config = config
        self._group_is_open = group_is_open
        self._serializer = config.hook.pytest_report_to_serializable
        self._send: Callable[[FromRank], None]
        self._progress: Tells
        self._order: Order
        self._item: pytest.Item
        self._watch: LeakWatch

    def start(self, send: Callable[[FromRank], None], progress: Tells) -> None:
        """Begin to serve in this process."""
        self._send, self._progress = send, progress

    def reset(self) -> None:
        """Forget the last test."""
        self.phases, self.warnings, self._subtest = [], [], None

    def begin(self, order: Order, item: pytest.Item, watch: LeakWatch) -> None:
        """Begin a test."""
        self._order, self._item, self._watch = order, item, watch

    @property
    def outcomes(self) -> set[str]:
        """The outcomes of the phases that have ended."""
        return {phase.outcome for phase in self.phases}

    # --- the phases --------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        runtestprotocol(item, log=False, nextitem=nextitem)
        return True

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, Any, Any]:
        __tracebackhide__ = True
        self._progress.begin(self._order.number, "setup")
        # The test before this one left up what it has in common with the next, which may have been skipped since.
        item.session._setupstate.teardown_exact(item)
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self) -> Generator[None, Any, Any]:
        __tracebackhide__ = True
        self._progress.enter("call")
        seed_generators(self._order.seed)  # so that fixtures cannot change what the test draws
        self.calling = True
        try:
            with examples.alike(self._item):
                return (yield)
        finally:
            self.calling = False

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self) -> Generator[None, Any, Any]:
        __tracebackhide__ = True
        self._progress.enter("teardown")
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
        __tracebackhide__ = True
        with contextlib.ExitStack() as stack:
            if fixturedef.scope != "function":
                stack.enter_context(self._watch.allowing())
            return (yield)

    # --- what they report ----------------------------------------------------------------------------

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
        if call.excinfo is not None and (advice := hint(call.excinfo.value, call.when, self._group_is_open())):
            add_hint(report, advice)
        brief, location, signature = describe_failure(call.excinfo)
        if strict:
            outcome, brief = "xpassed", str(report.longrepr)
        # If gloo aborts a rank because of another shape, those that lose their connection to it know shapes.
        last = recorder.last() if outcome == "failed" and _GLOO.search(brief) else None
        planned = call.excinfo is not None and is_planned(call.excinfo.value)
        phase = Phase(
            str(report.when), outcome, self._serialized(report), ended_at, brief, location, signature, strict, last,
            planned,
        )  # fmt: skip
        if self.calling:
            self._subtest = phase  # its report follows
            return report
        self.phases.append(phase)
        if outcome in ("failed", "skipped", "xfailed"):
            self._send(PhaseEnded(phase))
        return report

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report: Any) -> None:
        """Add the failure of a subtest to the record: the test goes on and fails. In a rank, pytest calls this
        hook for subtests only. Subtests that pass are not reported, as usual in pytest."""
        if self._subtest is None or not report.failed:
            return
        name = report.head_line.removeprefix(f"{report.location[2]} ")
        data = self._serialized(report)
        with contextlib.suppress(AttributeError, KeyError, TypeError):
            data["longrepr"]["chain"][-1][1]["message"] = f"{name} {report.longrepr.reprcrash.message}"
        subtest = self._subtest
        location = f"{subtest.location} in subtest {name}"
        self.phases.append(
            msgspec.structs.replace(subtest, report=data, location=location, signature=f"{subtest.signature} {name}")
        )

    def _serialized(self, report: pytest.TestReport) -> Any:
        return truncate(self._serializer(config=self._config, report=report))

    @pytest.hookimpl
    def pytest_warning_recorded(self, warning_message: Any, when: str) -> None:
        if when != "runtest" or not is_ignored(self._item, warning_message):
            self.warnings.append(as_warned(warning_message, when))

    # --- pytest-timeout ------------------------------------------------------------------------------

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_set_timer(self, settings: Any) -> bool:
        """Report a timer that starts with the call; the controller keeps all other time limits itself."""
        if settings.func_only:
            self._send(Deadline(settings.timeout))
        return True

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_cancel_timer(self) -> bool:
        return True
