"""Collect the modules that ranks imported, so that the zygote imports them before it forks further ranks."""

from __future__ import annotations

from everyrank.verdict.fates import Fates
from everyrank.wire.keepers import Preload

#: Fewer modules than this are not worth another process: a rank imports them in a few milliseconds.
_FEW = 10

#: Each batch of imports makes another successor of the zygote.
_MOST_BATCHES = 8

#: The time limit of a batch, in seconds: a multiple of the time of the tests that first needed it, plus a constant.
_LIMIT_FACTOR, _LIMIT_EXTRA = 3.0, 5.0
_LIMIT_AT_MOST = 60.0


class Preloading:
    """The modules that ranks imported and the zygote has not. Each module is requested once."""

    def __init__(self, enabled: bool) -> None:
        self._batches = _MOST_BATCHES if enabled else 0
        self._known: set[str] = set()
        self._names: list[str] = []
        self._seconds = 0.0

    def note(self, fates: Fates) -> None:
        """Note the modules that the ranks of a test imported."""
        imported = [name for fate in fates.ranks if fate.record is not None for name in fate.record.imports]
        fresh = [name for name in dict.fromkeys(imported) if name not in self._known]
        if fresh:
            self._known.update(fresh)
            # Modules that come later may import earlier ones, but not the other way round.
            self._names = [*fresh, *self._names]
            self._seconds += fates.seconds

    @property
    def is_due(self) -> bool:
        """Return whether enough modules wait to be imported to be worth a successor."""
        return self._batches > 0 and len(self._names) >= _FEW

    def take(self) -> Preload | None:
        """Return the next batch of modules to import, or None."""
        if not self.is_due:
            return None
        order = Preload(self._names, min(_LIMIT_FACTOR * self._seconds + _LIMIT_EXTRA, _LIMIT_AT_MOST))
        self._batches -= 1
        self._names, self._seconds = [], 0.0
        return order
