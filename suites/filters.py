"""The filters ``--law`` and ``--optimizer``: a name that nothing has is an error, not an empty run."""

from __future__ import annotations

import pytest
from everyrank.fixtures import optimizers
from everyrank.suites.contract import contract, contracts
from everyrank.suites.ledger import matches


def check_law(law: str) -> None:
    """Refuse a law that no contract has, naming those that there are."""
    known = sorted({one for name in contracts() for one in contract(name).laws})
    if not any(matches(law, one) for one in known):
        raise pytest.UsageError(f"--law: no law is called {law!r}; the laws are {', '.join(known)}")


def unknown(optimizer: str) -> str:
    """What is wrong with this name, once all test files are imported: they may register rows of their own."""
    names = [row.name for row in optimizers.rows()]
    if optimizer.lower() in [name.lower() for name in names]:
        return ""
    return f"--optimizer: no row is called {optimizer!r}; there are {', '.join(names)}"
