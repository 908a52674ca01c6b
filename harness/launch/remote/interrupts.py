"""Ctrl-C reaches all processes of an engine. The controller takes the roll call first, and then ends the others."""

from __future__ import annotations

import os
import signal

#: The controller of an engine that was asked to end must have ended within this many seconds.
_CONTROLLER_ENDS = 25


def leave_to_controller() -> None:
    """Let a remote keeper go on at Ctrl-C and, for some seconds, at SIGTERM: it ends with its controller.

    Call this when the ranks' parent was started: it must not inherit it.
    """
    keeper = os.getpid()

    def handle(number: int, frame: object) -> None:
        if os.getpid() != keeper:  # this is a parent that replaces a lost one, or a rank of it
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif number == signal.SIGTERM:
            signal.alarm(_CONTROLLER_ENDS)  # nobody handles it, so it ends this process

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGTERM, handle)
