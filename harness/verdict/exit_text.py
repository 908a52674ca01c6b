"""Describe how the process of a rank ended."""

from __future__ import annotations

import os
import signal


def exit_text(status: int, ranks: int = 1) -> str:
    """Describe a wait status, with a verb for this number of ranks."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name if number in list(signal.Signals) else f"signal {number}"
        return f"{'was' if ranks == 1 else 'were'} killed by {name}"
    return f"left without a record (exit code {os.WEXITSTATUS(status)})"
