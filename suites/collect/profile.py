"""The option ``--profile``, cheap to import: ``quick`` gives a verdict soon. The default is every case."""

from __future__ import annotations

import importlib.metadata

import pytest

QUICK, WHOLE = "quick", "whole"


def add(group: pytest.OptionGroup) -> None:
    """Add the option, under its short name too unless the plugin pytest-profiling has that."""
    names = ["--conformance-profile"]
    if not importlib.metadata.entry_points(group="pytest11", name="profiling"):
        names.insert(0, "--profile")
    group.addoption(
        *names,
        dest="conformance_profile",
        choices=(QUICK, WHOLE),
        default=WHOLE,
        help="quick: every law and every optimizer at least once on each subject; whole (default): every case",
    )
