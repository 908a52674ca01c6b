"""Let pytest's report of a failed case be the case's own text, not a traceback through the kit."""

from __future__ import annotations

import pytest
from _pytest._code.code import ExceptionChainRepr, ReprEntryNative, ReprFileLocation, ReprTraceback
from everyrank.suites.engine.failure import Failed


def report(item: pytest.Item, error: BaseException) -> ExceptionChainRepr | None:
    """Return the text as pytest's reporters read it, if it is a case that failed. pytest's summary has the news."""
    if not isinstance(error, Failed):
        return None
    path, line, _ = item.location
    entry = ReprTraceback([ReprEntryNative([f"{error.report}\n"])], None, style="native")
    return ExceptionChainRepr([(entry, ReprFileLocation(path, (line or 0) + 1, error.news), None)])


def wants_traceback(config: pytest.Config) -> bool:
    """Return whether whoever runs pytest asks for every frame."""
    return bool(config.getoption("fulltrace", False)) or config.getoption("tbstyle", "auto") == "long"
