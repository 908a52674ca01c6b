"""schedulefree: optimizers that average as they go, under torch's wrappers."""

from __future__ import annotations

from typing import Any

import pytest
from everyrank.fixtures.optimizers import Row
from everyrank.suites import conformance
from wrappers import WRAPPERS, row, under

schedulefree = pytest.importorskip("schedulefree", reason="pip install schedulefree")


def in_training(name: str) -> Row:
    """Return the row of a class that is in training: it refuses a step before ``train()``."""
    optimizer = getattr(schedulefree, name)

    def built(self: Any, params: Any, **options: Any) -> None:
        optimizer.__init__(self, params, **options)
        self.train()

    return row(type(name, (optimizer,), {"__init__": built}), {"lr": 0.05})


ROWS = [in_training(name) for name in ("SGDScheduleFree", "AdamWScheduleFree", "RAdamScheduleFree")]


@conformance(*(under(wrapper, "schedulefree", ROWS) for wrapper in WRAPPERS))
def test_schedulefree(case: Any) -> None:
    case.run()
