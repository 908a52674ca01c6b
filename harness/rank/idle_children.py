"""Find the processes that this rank has started and that do nothing unless its own threads ask them to.

Those are the helpers of ``multiprocessing``, and workers of torch's ``DataLoader`` that wait to be asked for a batch.
A worker that loads a batch may do anything, even send a message for its rank, whose sockets it has inherited.
Whatever is not certain is not idle.
"""

from __future__ import annotations

import fcntl
import gc
import os
import struct
import sys
import termios
from collections.abc import Iterator
from typing import Any

from everyrank.launch.sleep import accepting_path, polled_file, sleeps_for_ever
from everyrank.leaks import libraries
from everyrank.leaks.child_processes import children

#: A worker sends tensors as files, which this process fetches at a socket of this name.
_FILES_AT = "listener-"


def pids() -> list[int]:
    """Return the children of this process, and their children, that are idle."""
    families = [os.getpid()]
    for parent in families:
        families += children(parent)
    if len(families) == 1:
        return []
    helpers, queues = libraries.processes(), dict(_index_queues())
    return [pid for pid in families[1:] if pid in helpers or (pid in queues and _waits_for(queues[pid], pid))]


def _index_queues() -> Iterator[tuple[int, Any]]:
    """Yield the workers of all loaders, and the queue by which each is asked for a batch."""
    dataloader = sys.modules.get("torch.utils.data.dataloader")
    kind = getattr(dataloader, "_MultiProcessingDataLoaderIter", None)
    if kind is None:
        return
    for thing in gc.get_objects():
        if type(thing) is kind:
            for worker, queue in zip(thing._workers, thing._index_queues, strict=True):
                yield worker.pid, queue


def _waits_for(queue: Any, pid: int) -> bool:
    """Return whether a process waits for what comes by this queue, which is empty."""
    reader = queue._reader.fileno()
    if polled_file((pid, pid)) != os.readlink(f"/proc/self/fd/{reader}") or _pending(reader):
        return False
    others = (int(name) for name in os.listdir(f"/proc/{pid}/task"))
    return all(_is_idle((pid, thread)) for thread in others if thread != pid)


def _pending(fd: int) -> int:
    """Return how many bytes can be read from a pipe."""
    (pending,) = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))
    return int(pending)


def _is_idle(thread: tuple[int, int]) -> bool:
    return sleeps_for_ever(thread) or os.path.basename(accepting_path(thread)).startswith(_FILES_AT)
