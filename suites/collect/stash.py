"""Where the plugin notes what the filters left out; every run imports this module, so it imports little."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from everyrank.suites.collect.left_out import LeftOut, Selection

#: The selections of each conformance test, one for each subject, by the node id of its function.
SELECTIONS: pytest.StashKey[dict[str, list[Selection]]] = pytest.StashKey()

#: What the filters left out of this run; the controller of pytest-xdist has it from its workers.
LEFT_OUT: pytest.StashKey[LeftOut] = pytest.StashKey()

#: The names by which a worker of pytest-xdist sends what was left out, and the problem of a wrong filter.
WORKER_OUTPUT, WORKER_PROBLEM = "everyrank_left_out", "everyrank_filter_problem"
