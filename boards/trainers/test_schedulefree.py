"""schedulefree: optimizers that average as they go, under torch's wrappers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from everyrank.fixtures.optimizers import Row
from everyrank.suites import conformance
from wrappers import WRAPPERS, row, under

schedulefree = pytest.importorskip("schedulefree", reason="pip install schedulefree")


def in_training(name: str, arguments: Mapping[str, Any]) -> Row:
    """Return the row of a class that is in training: it refuses a step before ``train()``."""
    optimizer = getattr(schedulefree, name)

    def built(self: Any, params: Any, **options: Any) -> None:
        optimizer.__init__(self, params, **options)
        self.train()

    return row(type(name, (optimizer,), {"__init__": built}), arguments)


ROWS = [
    in_training("SGDScheduleFree", {"lr": 0.05}),
    in_training("AdamWScheduleFree", {"lr": 0.05}),
    in_training("RAdamScheduleFree", {"lr": 0.05, "silent_sgd_phase": False}),  # otherwise the first steps do nothing
]


@conformance(*(under(wrapper, "schedulefree", ROWS) for wrapper in WRAPPERS))
def test_schedulefree(case: Any) -> None:
    case.run()
