"""How far a rank is in its test: a few bytes of memory that it shares with the controller.

No message: the controller wants to know only when something goes wrong, and four ranks that wake it at each
phase cost more than what they have to say.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import time
from collections.abc import Callable
from typing import Protocol

from everyrank.wire.messages import Progressed

_PHASES = ("", "setup", "call", "teardown")
_TEST = struct.Struct("=Q")
_BEGAN = struct.Struct("=dB")
_SIZE = _TEST.size + _BEGAN.size


def shared_memory() -> int:
    """Return a descriptor of memory for one rank's progress."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("everyrank-progress")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, _SIZE)
    return fd


class Tells(Protocol):
    """A rank's side: it says which phase it is in."""

    def begin(self, test: int, when: str) -> None:
        """Enter the first phase of a test."""

    def enter(self, when: str) -> None:
        """Enter a further phase of the same test."""


class SentProgress:
    """The progress of a rank whose controller is on another host: a message for each phase."""

    def __init__(self, send: Callable[[Progressed], None]) -> None:
        self._send = send
        self._test = 0

    def begin(self, test: int, when: str) -> None:
        self._test = test
        self.enter(when)

    def enter(self, when: str) -> None:
        self._send(Progressed(self._test, when))


class Progress:
    """One rank's progress: the rank writes, the controller reads."""

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, _SIZE)

    def begin(self, test: int, when: str) -> None:
        """Enter the first phase of a test. Its number is written last, so that it is never read with old values."""
        _BEGAN.pack_into(self._memory, _TEST.size, time.monotonic(), _PHASES.index(when))
        _TEST.pack_into(self._memory, 0, test)

    def enter(self, when: str) -> None:
        """Enter a further phase of the same test."""
        self._memory[_SIZE - 1] = _PHASES.index(when)

    def phase_of(self, test: int) -> tuple[str, float]:
        """Return the phase that this test is in, and when the test began by the monotonic clock."""
        if _TEST.unpack_from(self._memory, 0)[0] != test:
            return "", 0.0
        began, phase = _BEGAN.unpack_from(self._memory, _TEST.size)
        return _PHASES[phase], began

    def close(self) -> None:
        self._memory.close()
