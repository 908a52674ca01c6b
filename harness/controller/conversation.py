"""What the controller and the ranks of one world send to each other, noted in the fates of the ranks."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

from everyrank.controller.census import Census
from everyrank.controller.cutoff import CutOff, TimeLimit
from everyrank.controller.debugger import Debugger, DebugOptions
from everyrank.controller.live_world import LiveWorld, PrintLine
from everyrank.controller.meeting import Meeting
from everyrank.controller.witnesses import Witnesses
from everyrank.launch.native import below_handlers
from everyrank.launch.protocol import LostLauncher, Seat
from everyrank.rollcall import rollcall
from everyrank.verdict.fates import Acted, Fate, Fates
from everyrank.wire.channel import Closed
from everyrank.wire.messages import (
    ClosedUp,
    Deadline,
    DebuggerLeft,
    DestroysGroup,
    FaultActs,
    FromRank,
    Granted,
    Leave,
    LeftWorld,
    Meet,
    OnNccl,
    PhaseEnded,
    Record,
    ToRank,
    WantsDebugger,
    WitnessStatement,
)

#: With ``--death-stacks``: how often ranks are looked at, and how long pystack may take for one, in seconds.
_DEATHS, _FRAMES = 0.2, 10.0


@dataclass(frozen=True)
class TalkOptions:
    """How the worlds of a run are listened to."""

    print_line: PrintLine
    debug: DebugOptions
    death_stacks: bool = False


class Conversation:
    """Listens to the ranks of a world. ``fates`` has their ends; ``limit`` and ``cut_off``, what time is left."""

    def __init__(
        self,
        world: LiveWorld,
        limit: TimeLimit,
        options: TalkOptions,
        census: Census | None = None,
        witnesses: Witnesses | None = None,
    ) -> None:
        self.world = world
        ranks = [Fate(rank) for rank in range(len(world.seats))]
        self.fates = Fates(ranks, keeper=world.launcher.keeper_title, world=world.number)
        self.limit = limit
        self.cut_off = CutOff(lambda rank: world.seats[rank].processor_time(), self.waited_for_cores)
        self.census = census
        self.witnesses = witnesses
        self.meeting = Meeting(len(ranks), self.send)
        self.closed_up: dict[int, str] = {}
        self.left: dict[int, str] = {}
        self._let_gone: set[int] = set()
        self.destroys_group = False
        """Whether a rank has reported that it destroys its group after the test's method."""
        self._native: dict[int, tuple[str, ...]] | None = {} if options.death_stacks else None  # of ranks that die
        self._print_line = options.print_line
        self._debugger = Debugger(options.debug)

    @property
    def debugging(self) -> bool:
        """Whether a person debugs a rank: then no clock counts."""
        return self._debugger.rank is not None

    def waited_for_cores(self) -> float:
        """Return how many seconds the ranks have waited for a core so far, all together."""
        return sum(seat.waited_for_core() for seat in self.world.seats)

    def show_the_rest(self) -> None:
        """Print the rest of the ranks' output, if it is printed as it comes (``-s``)."""
        self.world.show_the_rest(self._print_line)

    def listen(self, timeout: float | None) -> None:
        """Wait for what comes in, and note it."""
        if self.world.launcher.lost and not self.fates.launcher_lost:
            # It was found lost when another world was to be started: no event of it is to come.
            self._take_event(LostLauncher(self.world.launcher.lost))
            return
        if self._native is not None:
            self._read_deaths(self._native)
            timeout = _DEATHS if timeout is None else min(timeout, _DEATHS)
        for key, _ in self.world.selector.select(timeout):
            if key.data is None:
                for event in self.world.launcher.events():
                    self._take_event(event)
            elif isinstance(key.data, tuple):
                rank, name = key.data
                self.world.pass_on(rank, name, self._print_line)
            elif isinstance(key.data, int):
                self._receive(key.data)

    def _read_deaths(self, native: dict[int, tuple[str, ...]]) -> None:
        """Read the C frames of ranks that sleep in the handler of a fatal signal, and let them die."""
        for rank, seat in enumerate(self.world.seats):
            if rank not in native and (number := seat.stop_if_dying()):
                frames = self.world.launcher.native_frames({rank: seat}, _FRAMES)
                native[rank] = below_handlers(frames.get(rank, ()))
                seat.let_die(number)

    def _take_event(self, event: Seat | LostLauncher) -> None:
        if isinstance(event, LostLauncher):
            self.fates.launcher_lost = event.reason
            self.world.broken = True
            return
        if event not in self.world.seats or (event.status is None and not event.lost):
            return
        rank = self.world.seats.index(event)
        self._receive(rank)  # it may have filed its record before it ended
        fate = self.fates.ranks[rank]
        self.world.broken = True
        if fate.record is None and not fate.cut:
            fate.status, fate.lost_with = event.status, event.lost
            fate.ended_at = time.monotonic()
            self.keep_last_words(fate)
            if rank == self._debugger.rank:
                self.end_debugging()
            if not fate.planned_end:
                self.cut_off.note_trouble(fate.ended_at)
            self._let_go()
            self.meeting.dissolve(self._ended())

    def _receive(self, rank: int) -> None:
        channel = self.world.seats[rank].channel
        try:
            for message in channel.arrived():
                self._take(rank, message)
        except Closed:
            self.world.stop_listening(rank)

    def _take(self, rank: int, message: FromRank) -> None:
        fate = self.fates.ranks[rank]
        match message:
            case PhaseEnded(phase):
                fate.early.append(phase)
                if phase.outcome == "skipped":
                    self.cut_off.note_skip(time.monotonic())
                elif phase.when != "teardown" and not phase.planned:
                    self.cut_off.note_trouble(time.monotonic())
            case Record():
                fate.record = message
                if rank == self._debugger.rank:
                    self.end_debugging()
                if message.ended_badly:
                    self.cut_off.note_trouble(time.monotonic())
                self._let_go()
                self.meeting.dissolve(self._ended())
            case FaultActs(fault, call):
                fate.acted.append(Acted(fault, call))
            case Deadline(seconds):
                self.limit.start_anew(time.monotonic(), seconds, "pytest-timeout")
            case DestroysGroup():
                self.destroys_group = True
            case WitnessStatement() | OnNccl():
                if self.census is not None and isinstance(message, WitnessStatement):
                    self.census.hear(rank, message)
                if self.witnesses is not None:
                    self.witnesses.hear(rank, message)
            case Meet():
                self.meeting.come(rank, message, self._ended())
            case WantsDebugger(reason):
                self.send(rank, Granted(self._debugger.ask(rank, reason, self.world.seats[rank].interrupt)))
            case DebuggerLeft():
                self.end_debugging()
            case ClosedUp(problem):
                self.closed_up[rank] = problem
            case LeftWorld(problem):
                self.left[rank] = problem

    def _let_go(self) -> None:
        """After a planned death or cut, let each rank that has ended its test leave, as a script's process ends.

        Of four ranks or more, some notice a death only when others have gone, too.
        """
        if self.fates.was_broken:
            for fate in self.fates.ranks:
                if fate.record is not None and fate.rank not in self._let_gone:
                    self._let_gone.add(fate.rank)
                    self.send(fate.rank, Leave())

    def end_debugging(self) -> None:
        """Take the terminal back from a rank that has it."""
        self._debugger.leave()

    def _ended(self) -> list[int]:
        """Return the ranks that have ended their test."""
        return [fate.rank for fate in self.fates.ranks if fate.record is not None or fate.has_ended]

    def send(self, rank: int, message: ToRank) -> None:
        with contextlib.suppress(Closed):  # the rank has ended, which is noticed elsewhere
            self.world.seats[rank].channel.send(message)

    def keep_last_words(self, fate: Fate) -> None:
        """Keep what a rank printed before its end."""
        seat = self.world.seats[fate.rank]
        texts = seat.printed()
        if fate.stance is None:
            texts.append(rollcall.fatal(seat.stacks_text()))
        if frames := (self._native or {}).get(fate.rank):
            texts.append("\n  ".join(["C frames of the main thread, innermost first:", *frames]))
        fate.last_words = "\n".join(text.strip("\n") for text in texts if text.strip())
