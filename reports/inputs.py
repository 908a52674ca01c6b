"""Open what a person named: a file, compressed or not, or a pipe that somebody writes to."""

from __future__ import annotations

import errno
import io
import os
import stat
import zlib
from pathlib import Path
from typing import Any, BinaryIO

#: How a file begins that gzip made.
GZIP = b"\x1f\x8b"
#: zlib's number for gzip's header and trailer around the data.
GZIP_BITS = 31

_PIECE = 1 << 16


def open_input(path: Path) -> BinaryIO:
    """Open a file to read it. Raises an `OSError`, also for what would never come to an end: a terminal, a socket."""
    mode = path.stat().st_mode
    if stat.S_ISFIFO(mode):
        return _open_pipe(path)
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "it is no plain file")
    return path.open("rb")


def read_input(path: Path) -> bytes:
    """All that is in a file."""
    with open_input(path) as file:
        return file.read()


def _open_pipe(path: Path) -> BinaryIO:
    """A pipe whose other end is open; of one that nobody writes to the first byte would be waited for in vain."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        first = os.read(fd, _PIECE)
    except BlockingIOError:
        first = None
    if first == b"":
        os.close(fd)
        raise OSError(errno.EPIPE, "it is a pipe that nobody writes to")
    os.set_blocking(fd, True)
    return io.BufferedReader(_Pipe(first or b"", fd), _PIECE)


class _Pipe(io.RawIOBase):
    """A pipe of which the first bytes have been read."""

    def __init__(self, first: bytes, fd: int) -> None:
        self._first = first
        self._fd = fd

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def readinto(self, into: Any) -> int:
        piece = self._first[: len(into)] or os.read(self._fd, len(into))
        self._first = self._first[len(piece) :]
        into[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        if not self.closed:
            os.close(self._fd)
        super().close()


def is_compressed(file: BinaryIO) -> bool:
    """Whether gzip made it, whatever it is called."""
    return isinstance(file, io.BufferedReader) and file.peek(len(GZIP))[: len(GZIP)] == GZIP


class Inflated(io.RawIOBase):
    """What gzip made of a file, read back as far as it goes: ``cut`` says that its end is missing.

    A run that is killed, or still goes on, leaves such a file; the `gzip` module would lose the last lines of it.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._inflate = zlib.decompressobj(GZIP_BITS)
        self._ready = b""
        self.cut = False

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        while not self._ready and not self.cut:
            data = self._more()
            if not data and self._inflate.eof:
                return 0
            try:
                self._ready = self._inflate.decompress(data, len(into)) if data else self._inflate.flush()
            except zlib.error:
                raise OSError(errno.EBADMSG, "its compressed data is damaged") from None
            self.cut = not data
        piece, self._ready = self._ready[: len(into)], self._ready[len(into) :]
        into[: len(piece)] = piece
        return len(piece)

    def _more(self) -> bytes:
        """What is to be inflated next; several compressed files in a row are one."""
        if not self._inflate.eof:
            return self._inflate.unconsumed_tail or self._file.read(_PIECE)
        data = self._inflate.unused_data or self._file.read(_PIECE)
        if data:
            self._inflate = zlib.decompressobj(GZIP_BITS)
        return data
