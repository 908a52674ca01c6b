"""Report one run in the process that prints: write the header, a line for each test, and the footer."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from everyrank.reports.live import host, workers
from everyrank.reports.live.gather import Collected, Gathering
from everyrank.reports.live.progress import ProgressLine, terminal
from everyrank.reports.live.summary import Summary
from everyrank.reports.live.tally import Tally
from everyrank.reports.runfile.conclusion import Conclusion, conclude
from everyrank.reports.runfile.model import SCHEMA, CaseLine, CrossedPart, Footer, Header, LeftOutPart, ShardPart
from everyrank.reports.runfile.source import source_of
from everyrank.reports.runfile.write import NotWritable, RunFile

#: The limit of an interruption's text, in characters.
_INTERRUPTED = 300


def run_file_path(config: pytest.Config) -> Path | None:
    """Return the path of the run file that was asked for, or None.

    The option's path is relative to the folder in which pytest was called, the ini key's to pytest's root folder.
    """
    path = config.getoption("run_file")
    if path is not None:
        return Path(config.invocation_params.dir, path)
    named = str(config.getini("everyrank_run_file"))
    return Path(config.rootpath, named) if named else None


class RunReporter:
    """The pytest plugin that reports a run. It exists from the session's start or the first multi-rank test on."""

    def __init__(self, config: pytest.Config, path: Path | None) -> None:
        self.tally = Tally()
        self.gathering = Gathering(self._hear)
        self._config = config
        self._file = _open(path) if path is not None else None
        self._started = time.time()
        self._headed = False
        self._progress: ProgressLine | None = None
        self._interrupted = ""
        self._interrupts = contextlib.ExitStack()
        self.conclusion: Conclusion | None = None  # known at the end
        config.pluginmanager.register(self.gathering, "everyrank-gathering")
        config.pluginmanager.register(Summary(config, self.tally, path, self), "everyrank-summary")

    def expect(self, tests: Collected, times: int = 1) -> None:
        """Expect these multi-rank tests. Called before the first of them runs."""
        self.gathering.expect(tests, times)
        self._head()
        device = terminal(self._config)
        self._progress = ProgressLine(device) if device is not None else None

    def _head(self) -> None:
        if self._file is None or self._headed:
            return
        self._headed = True
        known = self.gathering.run
        source = source_of(self._config.rootpath, os.environ)
        self._file.write(
            Header(
                schema=SCHEMA,
                kit=host.installed("everyrank"),
                torch=host.installed("torch"),
                python=platform.python_version(),
                platform=platform.platform(),
                started=self._started,
                launcher=str(known.get("launcher", "fork")),
                seed=int(known.get("seed", 0)),
                devices=host.gpus(),
                backends=list(known.get("backends", [])),
                command=["pytest", *map(os.fspath, self._config.invocation_params.args)],
                workers=len(_nodes(self._config)) or 1,
                subjects=self.gathering.subjects,
                packages=self.gathering.packages,
                **vars(source),
                cases=self.gathering.ids,
                left_out=msgspec.convert(known.get("left_out", []), list[LeftOutPart]),
                shard=msgspec.convert(known.get("shard"), ShardPart | None),
            )
        )

    def _hear(self, case: CaseLine) -> None:
        self.tally.add(case)
        if self._file is not None:
            self._file.write(case)
        if self._progress is not None:
            worlds = sum(self.gathering.worlds_up.values())
            self._progress.update(self.tally, len(self.gathering.ids), worlds)

    @property
    def trouble(self) -> str:
        """Why the run file is not whole; an empty text if it is."""
        return self._file.trouble if self._file is not None else ""

    def expect_of_worker(self, tests: Collected) -> None:
        """Expect the tests of the first worker: all workers collect the same, or xdist runs nothing."""
        if not self.gathering.ids:
            each = self._config.getoption("dist", "no") == "each"
            self.expect(tests, len(_nodes(self._config)) if each else 1)
            self._interrupts.enter_context(workers.sigterm_interrupts())

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Keep the reason of an interruption: Ctrl-C, ``pytest.exit()``, or a session that was asked to stop."""
        if excinfo.typename == "Interrupted" and self.gathering.troubles:
            return  # pytest stops after errors of collection, which the troubles name
        message = " ".join(str(excinfo.value).split())[:_INTERRUPTED]
        self._interrupted = message or excinfo.typename
        if excinfo.typename == "KeyboardInterrupt" and self.gathering.ids:
            workers.let_workers_report(self._config)

    # This wrapper is the innermost: the terminal's own wrapper around it prints the summary.
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session):  # type: ignore[no-untyped-def]
        try:
            return (yield)
        finally:
            self._finish(session)
            self._interrupts.close()

    def _finish(self, session: pytest.Session) -> None:
        self._head()
        if self._progress is not None:
            self._progress.close()
            self._progress = None
        self.gathering.close()
        end: dict[str, Any] = {}
        self._config.hook.pytest_everyrank_ended(config=self._config, end=end)
        footer = Footer(
            counts=dict(Counter[str](self.tally.outcomes)),
            seconds=time.time() - self._started,
            exit=int(session.exitstatus),
            troubles=self.gathering.troubles,
            interrupted=self._interrupted,
            single=self.gathering.single.part(),
            crossings=msgspec.convert(end.get("crossings", []), list[CrossedPart]),
        )
        self.conclusion = conclude(self.tally.outcomes, footer)
        if self._file is None:
            return
        self._file.write(footer)
        self._file.close()
        if self._file.trouble and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR  # the run file that was asked for is missing


def _open(path: Path) -> RunFile:
    try:
        return RunFile(path)
    except NotWritable as error:
        raise pytest.UsageError(f"--run-file: {error}") from None


def _nodes(config: pytest.Config) -> list[Any]:
    """Return the workers of pytest-xdist; none without it."""
    session = config.pluginmanager.get_plugin("dsession")
    manager = getattr(session, "nodemanager", None)
    return list(getattr(manager, "specs", []))
