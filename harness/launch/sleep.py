"""What the kernel shows of a thread that sleeps: on what it waits, and for how long (Linux only)."""

from __future__ import annotations

import os
import platform
import struct

Thread = tuple[int, int]  # process and thread

#: The flag of futex for waits that only this process can end.
_PRIVATE = 128
#: The numbers of system calls.
_X86 = platform.machine() in ("x86_64", "AMD64")
_FUTEX = {"202"} if _X86 else {"98"}
_POLL = {"7", "271"} if _X86 else {"73"}  # poll and ppoll
_ACCEPT = {"43", "288"} if _X86 else {"202", "242"}  # accept and accept4
#: The size of a ``struct pollfd``.
_POLLFD = 8


def sleep_of(thread: Thread) -> str:
    """Return "ever" or "timed" if a thread waits for another one of its process; otherwise an empty text."""
    number, arguments = _call(thread)
    if number not in _FUTEX or len(arguments) < 4 or not arguments[1] & _PRIVATE:
        return ""
    return "timed" if arguments[3] else "ever"


def sleeps_for_ever(thread: Thread) -> bool:
    """Return whether a thread waits for another thread of its process without a time limit."""
    return sleep_of(thread) == "ever"


def polled_file(thread: Thread) -> str:
    """Return the only file that a thread polls, as the kernel names it (``pipe:[123]``); empty if there is none."""
    number, arguments = _call(thread)
    if number not in _POLL or len(arguments) < 2 or arguments[1] != 1:
        return ""
    try:
        with open(f"/proc/{thread[0]}/mem", "rb", buffering=0) as memory:
            (fd,) = struct.unpack_from("i", os.pread(memory.fileno(), _POLLFD, arguments[0]))
        return os.readlink(f"/proc/{thread[0]}/fd/{fd}")
    except (OSError, struct.error, OverflowError):
        return ""


def accepting_path(thread: Thread) -> str:
    """Return the path of the socket on which a thread waits for a connection; empty if there is none."""
    number, arguments = _call(thread)
    if number not in _ACCEPT or not arguments:
        return ""
    try:
        inode = os.readlink(f"/proc/{thread[0]}/fd/{arguments[0]}").removeprefix("socket:[").removesuffix("]")
        with open(f"/proc/{thread[0]}/net/unix") as file:
            fields = [line.split() for line in file]
    except OSError:
        return ""
    return next((line[7] for line in fields if len(line) > 7 and line[6] == inode), "")


def _call(thread: Thread) -> tuple[str, list[int]]:
    """Return the system call in which a thread sleeps, and its arguments."""
    try:
        with open(f"/proc/{thread[0]}/task/{thread[1]}/syscall") as file:
            number, *arguments = file.read().split()
        return number, [int(argument, 16) for argument in arguments]
    except (OSError, ValueError):
        return "", []
