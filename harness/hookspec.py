"""The hooks that other plugins may implement: what the harness knows of multi-rank tests, as plain data.

Plain means: dicts with text keys, lists, text, numbers, booleans and None, fit for JSON. No hook is called, and
nothing is made for it, where no plugin implements it.
"""

from __future__ import annotations

from typing import Any

import pytest


@pytest.hookspec
def pytest_everyrank_collected(config: pytest.Config, items: list[pytest.Item], run: dict[str, Any]) -> None:
    """The multi-rank tests that will run, in order, before the first of them; with pytest-xdist, in each worker.

    ``run`` holds ``launcher``, ``seed`` (of ``--world-seed``) and ``backends``. Not called where there are none.
    The kit's plugin adds ``left_out``, a list of ``filter``, ``reason`` and ``cases``, where it has left out cases.
    """


@pytest.hookspec
def pytest_everyrank_result(item: pytest.Item, result: dict[str, Any], reports: list[pytest.TestReport]) -> None:
    """A multi-rank test has ended; its reports are about to be logged.

    ``result`` always holds ``rule`` (the row of the verdict's truth table; ``skipped`` or ``refused`` for a test that
    got no world), ``size``, ``repeat`` and ``worlds_up``. A test that had a world also has ``world``,
    ``passes_alone``, ``not_kept``, ``ranks``, ``leaks``, ``rollcall`` and ``blame`` (the ranks to blame and the rule
    that names them, or None): see ``everyrank.told``.
    """


@pytest.hookspec(
    warn_on_impl=DeprecationWarning(
        "pytest_everyrank_told is now called pytest_everyrank_result(item, result, reports)"
    )
)
def pytest_everyrank_told(item: pytest.Item, told: dict[str, Any], reports: list[pytest.TestReport]) -> None:
    """The old name of ``pytest_everyrank_result``, which still works."""
