"""The options ``--generate``, ``--generate-seed`` and ``--generate-draw``, and what they ask for; a shared folder."""

from __future__ import annotations

import importlib.util
import secrets
from dataclasses import dataclass
from pathlib import Path

import pytest
from everyrank.model.counts import count

#: The id of the law of generated cases.
GENERATE = "generate"

#: The value of ``--generate-seed`` that stands for a new number each time.
FREE = "free"

#: The option that names a folder of all workers of pytest-xdist, since each has a run's folder of its own. Nobody
#: gives it: it is an option so that it travels to spawned ranks.
SHARED = "everyrank_shared_folder"


@dataclass(frozen=True)
class SearchPlan:
    """What is drawn."""

    draws: int
    seed: int = 0
    draw: str = ""
    """One draw as JSON; only this draw is carried out."""
    shrink: bool = True

    def options(self) -> list[str]:
        """Return the options that repeat this search."""
        if self.draw:
            return [f"--generate-draw={self.draw}"]
        return [f"--generate={self.draws}", f"--generate-seed={self.seed}"]


class Counts:
    """A pytest plugin of the process that prints: it counts draws and actions."""

    def __init__(self) -> None:
        self.draws, self.actions, self.seconds = 0, 0, 0.0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties = dict(report.user_properties)
        if report.when == "call" and "generate-draws" in properties:
            self.draws += int(str(properties["generate-draws"]))
            self.actions += int(str(properties["generate-actions"]))
            self.seconds += float(str(properties["generate-seconds"]))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.draws:
            rate = self.actions / self.seconds
            counts = f"{count(self.draws, 'draw')}, {count(self.actions, 'action')}"
            terminalreporter.write_line(f"generated: {counts} in {self.seconds:.0f} s ({rate:.0f} actions a second)")


PLAN: pytest.StashKey[SearchPlan] = pytest.StashKey()


def add(group: pytest.OptionGroup) -> None:
    group.addoption(
        "--generate", metavar="N", type=int, default=0,
        help="draw N models with sequences of actions for each subject whose contract has a player",
    )  # fmt: skip
    group.addoption(
        "--generate-seed",
        metavar="SEED",
        default="0",
        help="a number (default: 0), or `free` for a new number each time",
    )
    group.addoption("--generate-draw", metavar="JSON", default="", help="carry out only this draw")


def installed() -> bool:
    """Return whether Hypothesis is installed. Only drawing needs it: a given draw is carried out without it."""
    return importlib.util.find_spec("hypothesis") is not None


def configure(config: pytest.Config) -> None:
    """Note the plan and the shared folder, and refuse wrong options."""
    if hasattr(config, "workerinput") and (own := config.getoption("basetemp", None)):
        setattr(config.option, SHARED, str(Path(own).parent))
    draws, seed, draw = (config.getoption(f"generate{name}") for name in ("", "_seed", "_draw"))
    if not draws and not draw:
        return
    if draws < 0:
        raise pytest.UsageError(f"--generate takes a number of draws, not {draws}")
    if seed != FREE and not seed.isdecimal():
        raise pytest.UsageError(f"--generate-seed takes a number or `{FREE}`, not {seed!r}")
    if not draw and not installed():
        raise pytest.UsageError("--generate needs Hypothesis: pip install hypothesis")
    number = secrets.randbelow(2**32) if seed == FREE else int(seed)
    config.stash[PLAN] = SearchPlan(draws, number, draw)
    config.pluginmanager.register(Counts(), "everyrank-generated")
