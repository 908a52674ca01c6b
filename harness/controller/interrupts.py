"""Ctrl-C and SIGTERM in the pytest process: the first lets the running world answer its roll call.

While a world is watched, the first signal is only noted, and the watch ends the world. At any other time, and the
second time, a signal interrupts the run at once, as Ctrl-C interrupts any pytest.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

#: The signals that interrupt a run, by the names that texts give to them.
_NAMES = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}

#: A worker of pytest-xdist gets one Ctrl-C twice: from the terminal, and from the process that the user called. So it
#: ignores a signal that comes within this many seconds of another. It ends with that process in any case.
_ECHO_IN_WORKER = 5.0
#: ``timeout`` sends its signal to the process, and then to its group. A person is slower.
_ECHO = 0.2


class Interrupts:
    """The interrupts of one pytest process, from ``open`` to ``close``."""

    def __init__(self, is_worker: bool = False) -> None:
        self.name = ""
        """The signal that came while a world was watched; "" before that."""
        self._is_worker = is_worker
        self._watches = False
        self._last = float("-inf")
        self._pid = os.getpid()
        self._before: dict[int, Any] = {}
        # Ray's driver handles SIGTERM, too, but only from its start on.
        usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
        self._usual = [number for number, handler in usual.items() if signal.getsignal(number) == handler]
        self._woken, self._waker = os.pipe()

    def open(self) -> None:
        """Handle the signals that nobody had a handler for when this object was made.

        Call this when the zygote has been forked: ranks must not inherit it.
        """
        with contextlib.suppress(ValueError):  # this is not the main thread
            for number in self._usual:
                self._before[number] = signal.signal(number, self._handle)

    def close(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()
        os.close(self._woken)
        os.close(self._waker)

    def fileno(self) -> int:
        """Return a descriptor that is readable once a signal was noted."""
        return self._woken

    @contextlib.contextmanager
    def noted(self, selector: selectors.BaseSelector) -> Iterator[None]:
        """Note a signal meanwhile, and wake this selector by it."""
        selector.register(self, selectors.EVENT_READ, self)
        self._watches = True
        try:
            yield
        finally:
            self._watches = False
            with contextlib.suppress(KeyError, ValueError):  # the world has ended
                selector.unregister(self)

    def come(self, name: str) -> None:
        """Note an interrupt, or raise KeyboardInterrupt."""
        if self._is_echo(time.monotonic()):
            return
        if self._watches and not self.name:
            self.name = name
            os.write(self._waker, b"!")
            return
        raise _interruption(name)

    def _is_echo(self, now: float) -> bool:
        since, self._last = now - self._last, now
        # A signal that was not noted may be part of a test, which may send another.
        return since < _ECHO_IN_WORKER if self._is_worker else bool(self.name) and since < _ECHO

    def obey(self) -> None:
        """Interrupt the run if a signal was noted."""
        if self.name:
            raise _interruption(self.name)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            _act_as_usual(number)  # this is a process that a test has forked
        else:
            self.come(_NAMES[signal.Signals(number)])


def _interruption(name: str) -> KeyboardInterrupt:
    return KeyboardInterrupt() if name == _NAMES[signal.SIGINT] else KeyboardInterrupt(name)


def _act_as_usual(number: int) -> None:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
