"""The controller's side of one remote keeper, and of one rank that it keeps."""

from __future__ import annotations

import itertools
import socket
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import IO, Any, TypeVar

import msgspec
from everyrank.devices.protocol import Gpu
from everyrank.errors import MisuseError
from everyrank.launch.protocol import AskedChild, AskedStacks, Seat
from everyrank.launch.remote.door import SILENCE
from everyrank.patience import CoreWaits, Patience
from everyrank.wire.channel import Channel, Closed, Late
from everyrank.wire.keepers import NotStarted
from everyrank.wire.messages import FromRank, Progressed, Record
from everyrank.wire.remote import (
    Answer,
    AskPrinted,
    AskStacks,
    AskState,
    Done,
    Forget,
    FromRemoteKeeper,
    Halt,
    Interrupt,
    Printed,
    Ready,
    Stacks,
    State,
)

#: A keeper answers within this many seconds, also on a busy host; otherwise it is lost.
ANSWER = 30.0

#: A keeper that was let in introduces itself within this many seconds: first it starts the parent of its ranks.
INTRODUCTION = 150.0

Kind = TypeVar("Kind", bound=Answer)


def introduced(title: str, connection: socket.socket, within: float = INTRODUCTION) -> tuple[Channel[Any], Ready]:
    """Let a keeper that was let in introduce itself. Raise a MisuseError if it does not."""
    channel: Channel[Any] = Channel(connection, FromRemoteKeeper)
    try:
        ready = channel.receive(Patience(within))
    except Closed as error:
        if isinstance(error, Late):
            problem = f"did not introduce itself within {within:g} s: its host is too busy, or it hangs"
        else:
            problem = "ended before the first test: its own output says why"
        raise MisuseError(f"{title} {problem}") from None
    if not isinstance(ready, Ready):
        raise MisuseError(f"{title} did not introduce itself: it sent {type(ready).__name__}")
    return channel, ready


class Link:
    """The controller's side of one remote keeper."""

    def __init__(self, name: str, channel: Channel[Any], ready: Ready, boot: str) -> None:
        self.name = name
        self.channel = channel
        self.ready = ready
        self.same_host = ready.boot == boot
        self.gpus = [
            Gpu(gpu.uuid, memory=gpu.memory, capability=gpu.capability, handle=gpu.handle, type=gpu.type)
            for gpu in ready.gpus
        ]
        """The GPUs that its ranks may use; those of other keepers on its host may be the same."""
        self.clock_ahead = 0.0 if self.same_host else ready.clock - time.monotonic()
        """How far its monotonic clock is ahead of ours."""
        self.waited_for_core = CoreWaits([ready.pid] if self.same_host else [])
        self.lost = ""
        self.preloading = False
        self.wake: Callable[[], object] = lambda: None
        """Called when something arrived while nobody listened."""
        self.arrived: deque[msgspec.Struct] = deque()
        self._answers: dict[int, Answer] = {}
        self._requests = itertools.count(1)

    @property
    def address(self) -> str:
        """Its address, as other hosts can reach it; empty if it is lost."""
        try:
            host: str = self.channel.sock.getpeername()[0]
        except OSError as error:  # it has died after its last message, which is still to be read
            self.lose(error)
            return ""
        return host

    def send(self, message: msgspec.Struct) -> None:
        if not self.lost:
            try:
                self.channel.send(message)
            except Closed as error:
                self.lose(error)

    def request(self) -> int:
        return next(self._requests)

    def ask(self, question: Any, kind: type[Kind]) -> Kind | None:
        self.send(question)
        return self.answer(question.request, kind)

    def answer(self, request: int, kind: type[Kind]) -> Kind | None:
        """Wait for the answer to a question; None if the keeper is lost."""
        patience = Patience(ANSWER, self.waited_for_core)
        while not self.lost and request not in self._answers:
            try:
                self._take(self.channel.receive(patience))
            except Late:
                self.lose_silent()
            except Closed as error:
                self.lose(error)
        answer = self._answers.pop(request, None)
        return answer if isinstance(answer, kind) else None

    def listen(self) -> None:
        """Take what has arrived."""
        try:
            for message in self.channel.arrived():
                self._take(message)
        except Closed as error:
            self.lose(error)

    def has_refused(self, number: int) -> bool:
        """Return whether it has reported that it could not start this rank, and nobody has dealt with that yet."""
        return any(isinstance(message, NotStarted) and message.number == number for message in self.arrived)

    def _take(self, message: msgspec.Struct) -> None:
        if isinstance(message, Answer):
            self._answers[message.request] = message
        else:
            self.arrived.append(message)
            self.wake()

    def lose(self, error: Exception) -> None:
        silent = isinstance(error.__cause__, TimeoutError)  # its host does not answer the kernel's questions
        self._lose(f"was silent for {SILENCE} s" if silent else "is gone")

    def lose_silent(self) -> None:
        """Give up a keeper that has not answered in time."""
        self._lose(f"did not answer within {ANSWER:g} s: its host is too busy, or it hangs")

    def _lose(self, reason: str) -> None:
        self.lost = f"{self.name} {reason}"
        self.wake()


def ask_stacks(numbers: Mapping[Link, list[int]], native_within: float) -> dict[int, AskedStacks]:
    """Ask the ranks of these keepers for their stacks, all at once."""
    # A rank that continues may let others continue: stop the ranks of all keepers, then ask.
    _ask_all({link: Halt(link.request(), those) for link, those in numbers.items()}, Done)
    questions = {link: AskStacks(link.request(), those, native_within) for link, those in numbers.items()}
    return {
        number: AskedStacks(text, state, native, tuple(AskedChild(*child) for child in children))
        for answer in _ask_all(questions, Stacks)
        for number, (text, state, native, children) in answer.stacks.items()
    }


def _ask_all(questions: Mapping[Link, Any], kind: type[Kind]) -> list[Kind]:
    for link, question in questions.items():
        link.send(question)
    answers = [link.answer(question.request, kind) for link, question in questions.items()]
    return [answer for answer in answers if answer is not None]


class RankChannel(Channel[Any]):
    """The channel of a rank on another host. It keeps the rank's progress, and sets its clock."""

    def __init__(self, sock: socket.socket, clock_ahead: float) -> None:
        super().__init__(sock, FromRank | Progressed)
        self._clock_ahead = clock_ahead
        self._test, self._phase, self._began = -1, "", 0.0

    def phase_of(self, order: int) -> tuple[str, float]:
        return (self._phase, self._began) if self._test == order else ("", 0.0)

    def _next(self) -> Any:
        while isinstance(message := super()._next(), Progressed):
            if message.test != self._test:
                self._test, self._began = message.test, time.monotonic()
            self._phase = message.when
        if isinstance(message, Record) and self._clock_ahead:
            replace = msgspec.structs.replace
            phases = [replace(phase, ended_at=phase.ended_at - self._clock_ahead) for phase in message.phases]
            message = replace(message, phases=phases)
        return message


class RemoteSeat(Seat):
    """The controller's side of a rank that a remote keeper has started."""

    channel: RankChannel

    def __init__(self, number: int, channel: RankChannel, link: Link, streams: Mapping[str, IO[bytes]]) -> None:
        super().__init__(number, channel)
        self.host = link.ready.node
        self.link = link
        self.closed = False
        self._streams = streams
        self._waited = 0.0

    def phase_of(self, order: int) -> tuple[str, float]:
        return self.channel.phase_of(order)

    def processor_time(self) -> tuple[float, bool]:
        state = self._state()
        return (state.seconds, state.wants) if state is not None else (0.0, False)

    def is_ending(self) -> bool:
        state = self._state()
        return state is None or state.ending

    def waited_for_core(self) -> float:
        state = self._state()
        self._waited = state.waited if state is not None else self._waited
        return self._waited

    def _state(self) -> State | None:
        return None if self.gone else self.link.ask(AskState(self.link.request(), self.number), State)

    def interrupt(self) -> None:
        self.link.send(Interrupt(self.number))

    def live_streams(self) -> Mapping[str, IO[bytes]]:
        return self._streams

    def printed(self) -> list[str]:
        answer = self.link.ask(AskPrinted(self.link.request(), self.number), Printed)
        return answer.printed if answer is not None else []

    def stacks_text(self) -> str:
        answer = self.link.ask(AskPrinted(self.link.request(), self.number), Printed)
        return answer.stacks if answer is not None else ""

    def close(self) -> None:
        super().close()
        self.closed = True
        for stream in self._streams.values():
            stream.close()
        self.link.send(Forget(self.number))
