"""The memory of large models goes back to the system when a pass has ended."""

from __future__ import annotations

import contextlib
import ctypes
import gc

#: With this many elements a model is large: it is worth the time that this takes.
_LARGE = 1 << 22


def collect(elements: int) -> None:
    """Let go of a model with this many elements, which is no longer used, and give its memory back.

    Wrappers refer to themselves, and stay until garbage is collected. glibc keeps what is freed, in holes.
    """
    if elements >= _LARGE:
        gc.collect()
        with contextlib.suppress(AttributeError):  # another C library has no such function
            ctypes.CDLL(None).malloc_trim(0)
