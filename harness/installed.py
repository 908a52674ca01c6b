"""What installed packages offer by their entry points: launchers, types of devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from everyrank.errors import MisuseError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


def names(group: str) -> list[str]:
    """Return the names that installed packages have in this group of entry points."""
    return sorted({entry.name for entry in _entries(group)})


def load(group: str, kind: str, name: str, known: Callable[[], Sequence[str]]) -> Any:
    """Import what the only entry of this name stands for. ``kind`` is the word for it in an error."""
    entries = [entry for entry in _entries(group) if entry.name == name]
    if not entries:
        raise MisuseError(f"there is no {kind} {name!r}: there are {', '.join(known())}")
    if len({entry.value for entry in entries}) > 1:
        raise MisuseError(f"several packages have a {kind} {name!r}: {', '.join(sorted(map(_origin, entries)))}")
    try:
        return entries[0].load()
    except Exception as error:
        raise MisuseError(
            f"the {kind} {name!r} ({_origin(entries[0])}) cannot be imported: {type(error).__name__}: {error}"
        ) from error


def _entries(group: str) -> list[EntryPoint]:
    from importlib.metadata import entry_points  # it reads the metadata of every installed package

    return list(entry_points(group=group))


def _origin(entry: EntryPoint) -> str:
    return f"{entry.value} of {entry.dist.name}" if entry.dist is not None else entry.value
