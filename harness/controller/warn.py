"""Lines of the controller among pytest's warnings, at the end of the run."""

from __future__ import annotations

import warnings

import pytest


def warn(config: pytest.Config, text: str) -> None:
    """Add a warning to pytest's summary. Do not use warnings.warn(): under ``-W error`` that would end the run."""
    category = pytest.PytestWarning
    message = warnings.WarningMessage(category(f"everyrank: {text}"), category, "everyrank", 0)
    config.hook.pytest_warning_recorded.call_historic(
        kwargs={"warning_message": message, "nodeid": "", "when": "config", "location": None}
    )
