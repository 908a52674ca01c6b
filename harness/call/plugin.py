"""The pytest plugin of a call: it makes one test of the call, and hears how that test ended."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from everyrank.call.call import RunCall, location_of, name_of, unpacked
from everyrank.declare.stash import REPEAT

CALL: pytest.StashKey[RunCall] = pytest.StashKey()
#: The note in which a rank names the file that holds what the function returned there.
RETURNED = "returned"
#: The option with which a packed call comes to ranks that are no forks of the process that made it.
OPTION = "everyrank_call"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(f"--{OPTION}", help="for everyrank.run() alone")


def pytest_configure(config: pytest.Config) -> None:
    if CALL not in config.stash:
        config.stash[CALL] = unpacked(config.getoption(OPTION))


def pytest_pycollect_makeitem(collector: pytest.Module, name: str, obj: Any) -> pytest.Item | None:
    if name != "test_call":
        return None
    call = collector.config.stash[CALL]
    item: CallItem = CallItem.from_parent(collector, name=name_of(call.function), callobj=obj)
    item.add_marker(pytest.mark.world(**call.world))
    if call.group:
        item.add_marker(pytest.mark.rank_fixtures("process_group"))
    item.stash[REPEAT] = lambda options: call.line
    return item


class CallItem(pytest.Function):
    """The one test of a call. It has the name and the location of the caller's function."""

    @property
    def nodeid(self) -> str:
        return f"everyrank.run({self.name})"

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        file, line = location_of(self.config.stash[CALL].function)
        return (file, line - 1, self.name) if file else super().reportinfo()


class Ended:
    """Hears how the test of a call ended, and its session."""

    def __init__(self) -> None:
        self.result: dict[str, Any] = {}
        self.reports: list[pytest.TestReport] = []
        self.returned: list[bytes] = []
        """What the function returned on each rank, packed."""
        self.warnings: list[Any] = []
        self.left: BaseException | None = None
        """Why the session ended before its time."""

    @property
    def bad(self) -> pytest.TestReport | None:
        """The report that is not of a passed phase."""
        return next((report for report in self.reports if not report.passed), None)

    def pytest_everyrank_result(self, result: dict[str, Any], reports: list[pytest.TestReport]) -> None:
        self.result, self.reports = result, reports
        if self.bad is None:  # the files go with the run
            files = [os.fsdecode(bytes.fromhex(rank["notes"][RETURNED])) for rank in result["ranks"]]
            self.returned = [Path(file).read_bytes() for file in files]

    def pytest_warning_recorded(self, warning_message: Any) -> None:
        self.warnings.append(warning_message)

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        self.left = excinfo.value

    def pytest_internalerror(self, excinfo: pytest.ExceptionInfo[BaseException]) -> bool:
        self.left = excinfo.value
        return True  # pytest needs not print it: the caller gets it
