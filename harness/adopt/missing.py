"""Advice for a file that cannot be imported, since torch's private modules import what torch does not install."""

from __future__ import annotations

import re
from collections.abc import Generator

import pytest

_MISSING = re.compile(r"No module named '(expecttest|hypothesis|numpy)'")


class Missing:
    """Adds to a failed import what to install."""

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        report = yield
        if report.failed and (match := _MISSING.search(report.longreprtext)):
            name = match[1]
            report.sections.append(("hint", f"torch's private test modules import {name}: pip install {name}"))
        return report
