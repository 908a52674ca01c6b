"""What the harness notes on pytest's items."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from everyrank.declaration import Declaration

#: What a test declared; on multi-rank items only.
DECLARATION: pytest.StashKey[Declaration] = pytest.StashKey()
#: The rank fixtures that it asks for.
FIXTURES: pytest.StashKey[list[str]] = pytest.StashKey()
#: Why it cannot be run as it stands.
MISUSE: pytest.StashKey[str] = pytest.StashKey()
#: The timeout that pytest-timeout set for it.
TIMEOUT: pytest.StashKey[float] = pytest.StashKey()
#: Says how to run it alone with these further options, where that is not pytest with its id.
REPEAT: pytest.StashKey[Callable[[Sequence[str]], str]] = pytest.StashKey()
#: Further options that a run of it needs.
REPEAT_OPTIONS: pytest.StashKey[list[str]] = pytest.StashKey()


def is_declared(item: pytest.Item) -> bool:
    """Whether it is multi-rank. Here, and not in ``declare``: every run asks, and that one imports unittest."""
    return DECLARATION in item.stash or MISUSE in item.stash
