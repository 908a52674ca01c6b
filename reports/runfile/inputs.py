"""Open an input that a person named: a file, compressed or not, or a pipe that a process writes to."""

from __future__ import annotations

import errno
import io
import os
import stat
import zlib
from pathlib import Path
from typing import Any, BinaryIO

#: The first bytes of a file that gzip wrote.
GZIP = b"\x1f\x8b"
#: zlib's number for gzip's header and trailer around the data.
GZIP_BITS = 31

_PIECE = 1 << 16
#: The limit of compressed files that are read as one. A run writes one, and a merge joins the shards before that.
_IN_A_ROW = 10_000


def open_input(path: Path) -> BinaryIO:
    """Open a file to read it. Raise an `OSError`, also for an input that never ends: a terminal or a socket."""
    mode = path.stat().st_mode
    if stat.S_ISFIFO(mode):
        return _open_pipe(path)
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise OSError(errno.EINVAL, "it is not a plain file")
    return path.open("rb")


def read_input(path: Path) -> bytes:
    """Return the contents of a file."""
    with open_input(path) as file:
        return file.read()


def _open_pipe(path: Path) -> BinaryIO:
    """Open a pipe. Raise an `OSError` if no process has its other end open: a read would wait forever."""
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
    """A pipe whose first bytes have been read."""

    def __init__(self, first: bytes, fd: int) -> None:
        self._first = first
        self._fd = fd

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._fd

    def readinto(self, buffer: Any) -> int:
        piece = self._first[: len(buffer)] or os.read(self._fd, len(buffer))
        self._first = self._first[len(piece) :]
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        if not self.closed:
            os.close(self._fd)
        super().close()


def is_compressed(file: BinaryIO) -> bool:
    """Return whether gzip wrote the file, whatever its name."""
    return isinstance(file, io.BufferedReader) and file.peek(len(GZIP))[: len(GZIP)] == GZIP


class Inflated(io.RawIOBase):
    """The decompressed contents of a gzip file, as far as they go. ``cut`` is true if the end is missing.

    A run that was killed, or is still running, leaves such a file. The `gzip` module would lose its last lines.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._inflate = zlib.decompressobj(GZIP_BITS)
        self._ready = b""
        self._more_files = _IN_A_ROW
        self.cut = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready and not self.cut:
            data = self._more()
            if not data and self._inflate.eof:
                return 0
            try:
                self._ready = self._inflate.decompress(data, len(buffer)) if data else self._inflate.flush()
            except zlib.error:
                raise OSError(errno.EBADMSG, "its compressed data is damaged") from None
            self.cut = not data
        piece, self._ready = self._ready[: len(buffer)], self._ready[len(buffer) :]
        buffer[: len(piece)] = piece
        return len(piece)

    def _more(self) -> bytes:
        """Return the next compressed bytes. Several compressed files in a row are read as one."""
        if not self._inflate.eof:
            return self._inflate.unconsumed_tail or self._file.read(_PIECE)
        data = self._inflate.unused_data or self._file.read(_PIECE)
        if data:
            self._more_files -= 1
            if not self._more_files:
                raise OSError(
                    errno.EFBIG, f"it is {_IN_A_ROW:,} compressed files in a row, and no run writes more than one"
                )
            self._inflate = zlib.decompressobj(GZIP_BITS)
        return data
