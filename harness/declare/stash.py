"""The keys under which the harness notes things on pytest's items."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from everyrank.declare.declaration import Declaration

#: The declaration of a test; only multi-rank items have it.
DECLARATION: pytest.StashKey[Declaration] = pytest.StashKey()
#: Why the test cannot be run as it is written.
MISUSE: pytest.StashKey[str] = pytest.StashKey()
#: In the configuration: how many GPUs the hosts of a launcher have whose worlds may span several.
FOUND_GPUS: pytest.StashKey[int] = pytest.StashKey()
#: The timeout that pytest-timeout set for the test.
TIMEOUT: pytest.StashKey[float] = pytest.StashKey()
#: A function of further options that returns the command line which runs the test alone, if that is not
#: ``pytest`` with the test's id.
REPEAT: pytest.StashKey[Callable[[Sequence[str]], str]] = pytest.StashKey()
#: Further options that a run of the test needs.
REPEAT_OPTIONS: pytest.StashKey[list[str]] = pytest.StashKey()


def is_declared(item: pytest.Item) -> bool:
    """Return whether an item is multi-rank. Every run calls this, so this module imports little."""
    return DECLARATION in item.stash or MISUSE in item.stash
