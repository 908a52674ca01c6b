"""The option ``--profile``, cheap to import: how many of the cases of a subject run."""

from __future__ import annotations

import importlib.util

import pytest

QUICK, DEFAULT, FULL = "quick", "default", "full"


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
        choices=(QUICK, DEFAULT, FULL),
        default=DEFAULT,
        help="quick: each law and each optimizer once; default: each value of what a law is about, and each "
        "optimizer at each world size and in each dtype, in turn; full: every case",
    )
