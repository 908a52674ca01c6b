"""The filters ``--law`` and ``--optimizer``: a name that nothing has is an error, not an empty run."""

from __future__ import annotations

import pytest
from everyrank.fixtures import optimizers
from everyrank.suites.contract import contract, contracts
from everyrank.suites.ledger import matches


def check(law: str | None, optimizer: str | None) -> None:
    """Refuse an unknown law or optimizer, naming those that there are."""
    if law is not None:
        known = sorted({one for name in contracts() for one in contract(name).laws})
        if not any(matches(law, one) for one in known):
            raise pytest.UsageError(f"--law: no law is called {law!r}; the laws are {', '.join(known)}")
    if optimizer is not None:
        names = [row.name for row in optimizers.TABLE]
        if optimizer.lower() not in [name.lower() for name in names]:
            raise pytest.UsageError(f"--optimizer: no row is called {optimizer!r}; there are {', '.join(names)}")
