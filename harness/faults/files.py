"""Sees the files that a process opens to write, those of ``torch.save`` too; lets one of them meet a full disk."""

from __future__ import annotations

import builtins
import io
import os
import stat
import sys
import threading
from collections.abc import Callable
from typing import Any

#: Makes the call that opens a file, with the file's descriptors once it is open.
See = Callable[[str, Callable[[], Any], Callable[[Any], list[int]]], Any]

#: Modules of these packages open files that are not the test's.
_OTHERS = ("_pytest.", "everyrank.")


class Files:
    """Calls ``see`` with the name of each function that opens a regular file to write, until ``stop``."""

    def __init__(self, see: See) -> None:
        self._see = see
        self._inside = threading.local()  # tempfile opens by a function that it gives to io.open
        self._replaced: list[tuple[Any, str, Any]] = []
        self._replace(builtins, "open", self._open)
        self._replace(io, "open", self._open)
        self._replace(os, "open", self._os_open)
        serialization = sys.modules.get("torch.serialization")
        # Its C++ opens the file of torch.save(..., path).
        writer = getattr(serialization, "_open_zipfile_writer_file", None)
        if writer is not None:
            self._replace(writer, "__init__", self._torch_opens)

    def stop(self) -> None:
        for holder, name, real in self._replaced:
            setattr(holder, name, real)

    def _replace(self, holder: Any, name: str, around: Callable[[Any], Any]) -> None:
        real = getattr(holder, name)
        self._replaced.append((holder, name, real))
        setattr(holder, name, around(real))

    def _open(self, real: Any) -> Any:
        def open(file: Any, mode: str = "r", *more: Any, **options: Any) -> Any:
            def run() -> Any:
                return real(file, mode, *more, **options)

            writes = not isinstance(file, int) and not set(mode).isdisjoint("wax+")
            return self._seen("open", run, lambda opened: [opened.fileno()]) if writes else run()

        return open

    def _os_open(self, real: Any) -> Any:
        def open(path: Any, flags: int, *more: Any, **options: Any) -> Any:
            def run() -> Any:
                return real(path, flags, *more, **options)

            writes = flags & (os.O_WRONLY | os.O_RDWR) and not flags & getattr(os, "O_TMPFILE", 0) & ~os.O_DIRECTORY
            return self._seen("os.open", run, lambda fd: [fd]) if writes else run()

        return open

    def _torch_opens(self, real: Any) -> Any:
        def init(writer: Any, name: Any, *more: Any) -> None:
            self._seen("torch.save", lambda: real(writer, name, *more), lambda _: _descriptors(str(name)))

        return init

    def _seen(self, name: str, run: Callable[[], Any], descriptors: Callable[[Any], list[int]]) -> Any:
        opener = sys._getframe(2).f_globals.get("__name__", "")
        if getattr(self._inside, "open", False) or opener.startswith(_OTHERS):
            return run()
        self._inside.open = True
        try:
            return self._see(name, run, descriptors)
        finally:
            self._inside.open = False


def are_regular(descriptors: list[int]) -> bool:
    """Return whether these are files on a disk, and no pipes or devices."""
    return all(stat.S_ISREG(os.fstat(fd).st_mode) for fd in descriptors)


def fill_disk(descriptors: list[int]) -> None:
    """Let each write to these files fail as on a full disk: the kernel's device for this takes their descriptors."""
    full = os.open("/dev/full", os.O_WRONLY | os.O_CLOEXEC)
    for fd in descriptors:
        os.dup2(full, fd, inheritable=False)
    os.close(full)


def _descriptors(path: str) -> list[int]:
    """Return this process's descriptors of a file that C++ has opened."""
    real, found = os.path.realpath(path), []
    for name in os.listdir("/dev/fd"):
        try:
            same = os.path.samestat(os.fstat(int(name)), os.stat(real))
        except OSError:
            continue  # that of the listing itself
        found += [int(name)] if same else []
    return found
