"""What ranks imported, for the zygote to import it too, before it forks further ranks."""

from __future__ import annotations

from everyrank.record import Preload
from everyrank.verdict import Fates

#: Fewer modules than this are not worth another process: a rank imports them in a few milliseconds.
_FEW = 10

#: Each batch of imports makes a zygote of a zygote.
_MOST_BATCHES = 8

#: Imports may take so many times what the tests took that were the first to need them, and so much more, in seconds.
_TIMES, _MORE = 3.0, 5.0
_LONGEST = 60.0


class Preloading:
    """What was imported on ranks and not yet by the zygote. Each module is asked for once."""

    def __init__(self, wanted: bool) -> None:
        self._batches = _MOST_BATCHES if wanted else 0
        self._known: set[str] = set()
        self._names: list[str] = []
        self._seconds = 0.0

    def note(self, fates: Fates) -> None:
        """What the ranks of a test say that they imported."""
        found = [name for fate in fates.ranks if fate.record is not None for name in fate.record.imports]
        fresh = [name for name in dict.fromkeys(found) if name not in self._known]
        if fresh:
            self._known.update(fresh)
            # What came last may import what came first, and not the other way round.
            self._names = [*fresh, *self._names]
            self._seconds += fates.seconds

    @property
    def is_due(self) -> bool:
        """Whether ranks that are forked now would lack something that is worth having."""
        return self._batches > 0 and len(self._names) >= _FEW

    def take(self) -> Preload | None:
        """The next batch, if there is one."""
        if not self.is_due:
            return None
        order = Preload(self._names, min(_TIMES * self._seconds + _MORE, _LONGEST))
        self._batches -= 1
        self._names, self._seconds = [], 0.0
        return order
