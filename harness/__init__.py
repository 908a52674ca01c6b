"""This folder is imported as ``everyrank``: it runs one test on many ranks and gives one honest verdict.

Everything public is imported on first use, so that the pytest plugin costs next to nothing
in a run that has no multi-rank test.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everyrank.call.run import run
    from everyrank.errors import LeakWarning, MisuseError, RankLost, WorldFailed, WorldTimeout
    from everyrank.rank.world import World, current_world
    from everyrank.rpc.fixture import RpcAgentTestFixture, dist_init

    __version__: str

_HOME = {
    "LeakWarning": "everyrank.errors",
    "MisuseError": "everyrank.errors",
    "RankLost": "everyrank.errors",
    "RpcAgentTestFixture": "everyrank.rpc.fixture",
    "World": "everyrank.rank.world",
    "WorldFailed": "everyrank.errors",
    "WorldTimeout": "everyrank.errors",
    "current_world": "everyrank.rank.world",
    "dist_init": "everyrank.rpc.fixture",
    "run": "everyrank.call.run",
}

__all__ = [
    "LeakWarning",
    "MisuseError",
    "RankLost",
    "RpcAgentTestFixture",
    "World",
    "WorldFailed",
    "WorldTimeout",
    "__version__",
    "current_world",
    "dist_init",
    "run",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import version

        return version("everyrank")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    """List the public names before their first use, too: ``help(everyrank)`` shows what this lists."""
    return sorted({*globals(), *__all__})
