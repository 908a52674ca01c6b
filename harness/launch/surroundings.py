"""What a shell or a service may have left unusual in this process: mend it, so that worlds can run."""

from __future__ import annotations

import os
import signal


def mend() -> None:
    """Open closed standard streams, and let this process hear of the ends of its children.

    Call this first in a pytest process, whose children inherit it, and in an interpreter that keeps ranks.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            # Otherwise a pipe of ours would get this number, and a rank would take it for its stdin. The lowest
            # number that is free is this one.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        # The kernel would forget how each child ended.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
