"""The hooks of ``--adopt`` for tests that run scripts by torchrun: the verdict on the ranks in the report."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from everyrank.declare.stash import DECLARATION, MISUSE
from everyrank.patience import Patience
from everyrank.scripts.folder import PYTEST, VARIABLE, ScriptFolder, ScriptRank, process_name, runs
from everyrank.verdict.report import put_first

#: What torchrun has left ends within this many seconds of it, and the watcher with it.
_ENDS = 10.0
#: The folder that Python looks in at its start.
_ON_PATH = str(Path(__file__).parent / "on_path")


class ScriptAdopter:
    """Lets what a test in one process starts be watched, if torchrun is among it."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._folder = pytest.StashKey[Path]()
        self._numbers = itertools.count()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, Any, Any]:
        factory: Any = getattr(self._config, "_tmp_path_factory", None)
        if factory is None or DECLARATION in item.stash or MISUSE in item.stash:
            return (yield)
        # It is made by the first rank that needs it.
        folder = item.stash[self._folder] = factory.getbasetemp() / "everyrank-scripts" / str(next(self._numbers))
        before = {name: os.environ.get(name) for name in (VARIABLE, PYTEST, "PYTHONPATH")}
        os.environ[VARIABLE] = str(folder)
        os.environ[PYTEST] = process_name()
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_ON_PATH, before["PYTHONPATH"]]))
        try:
            return (yield)
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed and (folder := item.stash.get(self._folder, None)) is not None:
            verdicts = [text for text in map(_verdict, runs(folder)) if text]
            if verdicts:
                put_first(report, "\n".join(text.partition("\n\n")[0] for text in verdicts), item)
            report.sections[:0] = [("torchrun", text) for text in verdicts]  # above the captured output
        return report


def _verdict(run: ScriptFolder) -> str:
    """Return the verdict on a run, for which a run that has ended is waited for; "" if there is none."""
    patience = Patience(_ENDS)
    while not run.has("verdict") and not run.has("over") and _has_ended(run.ranks()) and patience.turn():
        time.sleep(0.01)
    return run.text("verdict")


def _has_ended(ranks: dict[int, ScriptRank]) -> bool:
    """Return whether torchrun has ended. If not, this may be a server for several tests."""
    return not any(os.path.exists(f"/proc/{process.agent}") for process in ranks.values())
