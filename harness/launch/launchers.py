"""Find a launcher by its name: one of ours, or one that an installed package names in its entry points."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from everyrank import installed

if TYPE_CHECKING:
    import pytest
    from everyrank.launch.protocol import Launch, Member

#: The group of entry points. A name stands for a function that takes a ``LaunchContext`` and returns a ``Launcher``.
GROUP = "everyrank.launchers"

BUILT_IN = {
    "fork": "everyrank.launch.fork",
    "spawn": "everyrank.launch.spawn",
    "torchrun": "everyrank.launch.remote.torchrun",
    "ray": "everyrank.launch.remote.ray",
}
#: Launchers that need nothing but this host: no module is imported for them before it is needed.
_ON_THIS_HOST = ("fork", "spawn")


def names() -> list[str]:
    """Return the names of all launchers that are installed."""
    return [*BUILT_IN, *(name for name in installed.names(GROUP) if name not in BUILT_IN)]


def find(name: str) -> Launch:
    """Return the function that starts the launcher of this name."""
    if name in BUILT_IN:
        launch: Launch = importlib.import_module(BUILT_IN[name]).launch
    else:
        launch = installed.load(GROUP, "launcher", name, names)
    return launch


def configure(name: str, config: pytest.Config) -> Member | None:
    """Let a launcher check how this process was started, before any test is collected.

    Its module may have a function ``configure``. That returns a ``Member`` if this process is to keep ranks for
    another one.
    """
    member: Member | None = _module(name).configure(config) if has_members(name) else None
    return member


def has_members(name: str) -> bool:
    """Return whether the processes of an engine wait for a run with this launcher, whatever its tests are."""
    return name not in _ON_THIS_HOST and hasattr(_module(name), "configure")


def _module(name: str) -> Any:
    return sys.modules[find(name).__module__]
