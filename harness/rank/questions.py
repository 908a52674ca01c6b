"""What a rank asks the controller, and then waits for the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from everyrank.wire.channel import Channel
from everyrank.wire.messages import DebuggerLeft, Granted, Meet, Met, ToRank, WantsDebugger


class Questions:
    """The questions of one rank; a zygote has no channel, its forks have one each."""

    def __init__(self, channel: Callable[[], Channel[ToRank]]) -> None:
        self._channel = channel

    def meet(self, point: str, digest: str, text: str, looks: bool = False) -> Met:
        """Ask who else comes to a point of the test, or has left it."""
        met: Met = self._answer(Meet(point, digest, text, looks), Met)
        return met

    def ask_debugger(self, reason: str) -> bool:
        """Ask for the terminal."""
        granted: Granted = self._answer(WantsDebugger(reason), Granted)
        return granted.yes

    def release_debugger(self) -> None:
        self._channel().send(DebuggerLeft())

    def _answer(self, question: Any, kind: type[Any]) -> Any:
        self._channel().send(question)
        message = self._channel().receive()
        if not isinstance(message, kind):
            raise RuntimeError(f"everyrank: expected {kind.__name__}, got {message!r}")
        return message
