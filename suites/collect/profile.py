"""The option ``--profile``, cheap to import: ``quick`` gives a verdict soon. The default is every case."""

from __future__ import annotations

import importlib.util

import pytest

QUICK, WHOLE = "quick", "whole"


def add(group: pytest.OptionGroup) -> None:
    """Add the option, under its short name too unless the plugin pytest-profiling has that.

    Whether that is installed is asked by its module: to look for its entry point would read all metadata again.
    """
    names = ["--conformance-profile"]
    if importlib.util.find_spec("pytest_profiling") is None:
        names.insert(0, "--profile")
    group.addoption(
        *names,
        dest="conformance_profile",
        choices=(QUICK, WHOLE),
        default=WHOLE,
        help="quick: every law and every optimizer at least once on each subject; whole (default): every case",
    )
