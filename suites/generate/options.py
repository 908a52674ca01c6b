"""The options ``--generate``, ``--generate-seed`` and ``--generate-draw``; cheap to import."""

from __future__ import annotations

import importlib.util
import secrets
from dataclasses import dataclass

import pytest

#: The law that generated cases are of.
GENERATE = "generate"

#: What ``--generate-seed`` takes instead of a number.
FREE = "free"


@dataclass(frozen=True)
class Plan:
    """What the options ask for."""

    draws: int
    seed: int = 0
    draw: str = ""
    """One draw as JSON: it alone is carried out."""
    shrink: bool = True

    def options(self) -> list[str]:
        """The options that search again in the same way."""
        if self.draw:
            return [f"--generate-draw={self.draw}"]
        return [f"--generate={self.draws}", f"--generate-seed={self.seed}"]


class Counts:
    """A pytest plugin of the process that prints: how much was drawn and carried out."""

    def __init__(self) -> None:
        self.draws, self.actions, self.seconds = 0, 0, 0.0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        said = dict(report.user_properties)
        if report.when == "call" and "generate-draws" in said:
            self.draws += int(str(said["generate-draws"]))
            self.actions += int(str(said["generate-actions"]))
            self.seconds += float(str(said["generate-seconds"]))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.draws:
            rate = self.actions / self.seconds
            what = f"{self.draws:,} draws, {self.actions:,} actions"
            terminalreporter.write_line(f"generated: {what} in {self.seconds:.0f} s ({rate:.0f} actions a second)")


PLAN: pytest.StashKey[Plan] = pytest.StashKey()


def add(group: pytest.OptionGroup) -> None:
    group.addoption(
        "--generate", metavar="N", type=int, default=0,
        help="draw N models with sequences of actions for each subject whose contract has a grammar",
    )  # fmt: skip
    group.addoption(
        "--generate-seed",
        metavar="SEED",
        default="0",
        help="a number (default: 0), or `free` for another one each time",
    )
    group.addoption("--generate-draw", metavar="JSON", default="", help="carry out this draw alone")


def installed() -> bool:
    """Whether Hypothesis, which draws, is there; a draw that exists is carried out without it."""
    return importlib.util.find_spec("hypothesis") is not None


def configure(config: pytest.Config) -> None:
    """Note the plan; refuse options that cannot be followed."""
    draws, seed, draw = (config.getoption(f"generate{name}") for name in ("", "_seed", "_draw"))
    if not draws and not draw:
        return
    if draws < 0:
        raise pytest.UsageError(f"--generate takes a number of draws, not {draws}")
    if seed != FREE and not seed.isdecimal():
        raise pytest.UsageError(f"--generate-seed takes a number or `{FREE}`, not {seed!r}")
    if not draw and not installed():
        raise pytest.UsageError("--generate needs Hypothesis: pip install 'everyrank[generate]'")
    number = secrets.randbelow(2**32) if seed == FREE else int(seed)
    config.stash[PLAN] = Plan(draws, number, draw)
    config.pluginmanager.register(Counts(), "everyrank-generated")
