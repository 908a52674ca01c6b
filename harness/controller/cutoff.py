"""When a test ends for ranks that have not finished: its deadline, and the time that is left after a failure.

Nothing here asks the system anything: the clock, the ranks' processor time and their waits for a core are handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from everyrank.patience import Patience, step
from everyrank.verdict.fates import Fate

#: After a failure, ranks that are still in the test get this long to finish or to fail, too. Most of
#: them wait for the one that failed, and would wait for ever.
GRACE = 0.4
#: Ranks that are still busy then, or in their teardown, get this long: they may fail in the same way.
BUSY_GRACE = 5.0
#: Ranks must begin the test within this; it takes milliseconds, or what imports take in clean interpreters.
START = 120.0


class TimeLimit:
    """The deadline of a test. It counts from the first phase of the first rank; until then, ranks have ``START``.

    It has only the time in which this process ran: ranks may wait for an answer that a stopped process cannot give.
    """

    def __init__(self, seconds: float | None, source: str) -> None:
        self.seconds = seconds
        self.source = source
        self._patience: Patience | None = None
        self._has_begun = False

    def order(self, now: float, waited: Callable[[], float] = lambda: 0.0) -> None:
        """Note that the orders were given. Clean interpreters import and collect before they begin."""
        if self.seconds is not None:
            self._patience = Patience(START, waited, began=now)

    def begin(self, began: float) -> None:
        """Note when the first rank began the test."""
        if self.seconds is not None and not self._has_begun:
            self._count(self.seconds, began)

    def start_anew(self, now: float, seconds: float, source: str) -> None:
        """Count from now: a timer of pytest-timeout starts with the call."""
        self.seconds, self.source = seconds, source
        self._count(seconds, now)

    def _count(self, seconds: float, began: float) -> None:
        self._patience, self._has_begun = Patience(seconds, began=began), True

    def missed(self, now: float) -> bool:
        return self._patience is not None and not self._patience.turn(now)

    def left(self) -> float:
        """Return how much of the deadline is left at the most."""
        return self._patience.left if self._patience is not None and self._has_begun else float("inf")

    def times(self, now: float) -> list[float]:
        """Return when to look at the clock again."""
        if self._patience is None or self.seconds is None:
            return []
        times = [now + self._patience.turn(now)]
        # A rank sends no message when it begins, and a beginning that is seen late is taken for a stopped process.
        return times if self._has_begun else [*times, now + step(self.seconds)]


class CutOff:
    """Decides which ranks will not finish any more, because another rank failed, died or skipped.

    ``processor_time`` returns, for a rank, the seconds that its process has run, and whether it wants to run.
    ``waited`` returns how many seconds all ranks together have waited for a core.
    """

    def __init__(
        self,
        processor_time: Callable[[int], tuple[float, bool]],
        waited: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._processor_time = processor_time
        self._waited = waited
        self._graces: tuple[float, Patience, Patience] | None = None  # since when; for ranks that wait, and busy ones
        self.trouble_at: float | None = None
        self.skip_at: float | None = None
        self.began_at = 0.0  # when the last rank that has begun the test began it
        self._looked_at = 0.0
        self._used: dict[int, float] = {}
        self._used_at_first: dict[int, float] = {}

    def note_trouble(self, now: float) -> None:
        """Note that a rank failed or died; the first time counts."""
        if self.trouble_at is None:
            self.trouble_at = now

    def note_skip(self, now: float) -> None:
        if self.skip_at is None:
            self.skip_at = now

    @property
    def all_is_well(self) -> bool:
        return self.trouble_at is None and self.skip_at is None

    def due(self, open_ranks: Sequence[Fate], now: float) -> list[Fate]:
        """Return the ranks to cut off now, of those that have not finished."""
        graces = self._graces_for(open_ranks)
        if graces is None:
            return []
        since, waits, is_busy = graces
        inside = [fate for fate in open_ranks if fate.phase != "teardown"]
        if not is_busy.turn(now):
            return list(open_ranks) if self.trouble_at is not None else inside
        is_over = not waits.turn(now)
        has_looked = self._looked_at >= since
        if now < max(self._looked_at, since) + GRACE / 2 or (has_looked and not is_over):
            return []
        self._looked_at = now
        # Ask about every rank: each answer is about the time since the last call.
        done = [self._had_its_chance(fate) for fate in inside]
        return inside if is_over and all(done) else []

    def times(self, open_ranks: Sequence[Fate], now: float) -> list[float]:
        """Return when to look at the clock again."""
        times = []
        if not self.all_is_well and any(not fate.phase for fate in open_ranks):
            times.append(now + GRACE / 2)  # a rank sends no message when it begins
        if (graces := self._graces_for(open_ranks)) is not None:
            since, waits, is_busy = graces
            times += [now + is_busy.turn(now), now + waits.turn(now)]
            if any(fate.phase != "teardown" for fate in open_ranks):
                times.append(max(self._looked_at, since) + GRACE / 2)
        return times

    def _since(self, open_ranks: Sequence[Fate]) -> float | None:
        """Return when a rank had failed, or else skipped, and all ranks had begun; None before that."""
        since = self.trouble_at if self.trouble_at is not None else self.skip_at
        if since is None or any(not fate.phase for fate in open_ranks):
            return None  # a rank that has not begun waits for no other rank: it may be importing
        return max(since, self.began_at)

    def _graces_for(self, open_ranks: Sequence[Fate]) -> tuple[float, Patience, Patience] | None:
        """Return since when ranks are waited for, and the limits for those that wait and for those that are busy."""
        since = self._since(open_ranks)
        if since is not None and (self._graces is None or self._graces[0] != since):
            self._graces = since, Patience(GRACE, began=since), Patience(BUSY_GRACE, self._waited, began=since)
        return self._graces if since is not None else None

    def _had_its_chance(self, fate: Fate) -> bool:
        """Return whether a rank is idle, or has used its grace after a failure.

        It is idle if it has used no processor time since the last call and wants none: it waits for another rank. The
        grace is processor time, since a rank may spin. So no rank is cut off because a busy machine made it late.
        """
        used, wants = self._processor_time(fate.rank)
        waits = self._used.get(fate.rank) == used and not wants
        self._used[fate.rank] = used
        first = self._used_at_first.setdefault(fate.rank, used)
        return waits or (self.trouble_at is not None and used - first >= GRACE)
