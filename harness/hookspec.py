"""The hooks that other plugins may implement. They receive what the harness knows of multi-rank tests, as plain data.

Plain data is what JSON can hold: dicts with text keys, lists, text, numbers, booleans and None. If no plugin
implements a hook, it is not called and its data is not made.
"""

from __future__ import annotations

from typing import Any

import pytest


@pytest.hookspec
def pytest_everyrank_collected(config: pytest.Config, items: list[pytest.Item], run: dict[str, Any]) -> None:
    """Receive the multi-rank tests that will run, in order. With pytest-xdist, each worker calls this hook.

    It is called before the first test, and only if there is a multi-rank test. ``run`` holds ``launcher``, ``seed``
    (from ``--world-seed``) and ``backends``. If the kit's plugin has left out cases, it adds ``left_out``: a list of
    dicts with ``filter``, ``reason`` and ``cases``.
    """


@pytest.hookspec
def pytest_everyrank_result(item: pytest.Item, result: dict[str, Any], reports: list[pytest.TestReport]) -> None:
    """Receive the result of a multi-rank test that has ended; its reports are about to be logged.

    ``result`` has the fields of ``everyrank.model.result.TestResult``, which documents them. For a test that got no
    world, ``world`` is None and ``ranks`` is empty.
    """


@pytest.hookspec
def pytest_everyrank_ended(config: pytest.Config, end: dict[str, Any]) -> None:
    """Add to what stands at the end of a run's file, in the process that prints, after the last test.

    The kit's plugin adds ``crossings``: for each subject how much of what its contract's scripts can ask was asked.
    """
