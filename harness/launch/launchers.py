"""Find a launcher by its name: one of ours, or one that an installed package names in its entry points."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from everyrank.errors import MisuseError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    import pytest
    from everyrank.launch.protocol import Launch, Member

#: The group of entry points. A name stands for a function that takes a ``LaunchContext`` and returns a ``Launcher``.
GROUP = "everyrank.launchers"

OURS = {
    "fork": "everyrank.launch.fork",
    "spawn": "everyrank.launch.spawn",
    "torchrun": "everyrank.launch.remote.torchrun",
    "ray": "everyrank.launch.remote.ray",
}
#: Launchers that need nothing but this host: no module is imported for them before it is needed.
_ON_THIS_HOST = ("fork", "spawn")


def names() -> list[str]:
    """Return the names of all launchers that are installed."""
    return [*OURS, *sorted({entry.name for entry in _entries()} - OURS.keys())]


def find(name: str) -> Launch:
    """Return the function that starts the launcher of this name."""
    if name in OURS:
        ours: Launch = importlib.import_module(OURS[name]).launch
        return ours
    entries = [entry for entry in _entries() if entry.name == name]
    if not entries:
        raise MisuseError(f"there is no launcher {name!r}: there are {', '.join(names())}")
    if len({entry.value for entry in entries}) > 1:
        raise MisuseError(f"several packages have a launcher {name!r}: {', '.join(sorted(map(_origin, entries)))}")
    try:
        found: Launch = entries[0].load()
    except Exception as error:
        raise MisuseError(
            f"the launcher {name!r} ({_origin(entries[0])}) cannot be imported: {type(error).__name__}: {error}"
        ) from error
    return found


def configure(name: str, config: pytest.Config) -> Member | None:
    """Let a launcher check how this process was started, before any test is collected.

    Its module may have a function ``configure``. That returns a ``Member`` if this process is to keep ranks for
    another one.
    """
    found: Member | None = _module(name).configure(config) if has_members(name) else None
    return found


def has_members(name: str) -> bool:
    """Return whether the processes of an engine wait for a run with this launcher, whatever its tests are."""
    return name not in _ON_THIS_HOST and hasattr(_module(name), "configure")


def _module(name: str) -> Any:
    return sys.modules[find(name).__module__]


def _entries() -> list[EntryPoint]:
    from importlib.metadata import entry_points  # it reads the metadata of every installed package

    return list(entry_points(group=GROUP))


def _origin(entry: EntryPoint) -> str:
    return f"{entry.value} of {entry.dist.name}" if entry.dist is not None else entry.value
