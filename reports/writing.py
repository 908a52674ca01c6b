"""The writer of run files. A line is in the file as soon as it is known: a killed run leaves what it did.

That holds for compressed files (``.gz``) as well: each line is flushed, so that all of it can be inflated.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import zlib
from pathlib import Path
from typing import Any

import msgspec
from everyrank.reports.inputs import GZIP, GZIP_BITS
from everyrank.reports.model import AnyLine

#: How every run file begins.
_OURS = b'{"line":"header","schema":'

#: Bytes of an older file that show what it is; a compressed one that holds something has more than the least.
_START, _LEAST = 1 << 16, 32


class NotWritable(Exception):
    """A run file cannot be kept where it was asked for; what is there stays as it is."""


class RunFile:
    """An open run file, emptied and locked. What was there must have been a run file, whole or not."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trouble = ""  # why no line could be written any more
        self._deflate = zlib.compressobj(wbits=GZIP_BITS) if path.suffix == ".gz" else None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
        except OSError as error:
            raise NotWritable(f"{path} cannot be written: {error.strerror}") from None
        try:
            self._take()
        except BaseException:
            os.close(self._file)
            raise

    def _take(self) -> None:
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            raise NotWritable(f"{self.path} is no plain file")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno != errno.EWOULDBLOCK:
                raise NotWritable(f"{self.path} cannot be locked: {error.strerror}") from None
            raise NotWritable(f"{self.path} is being written by another run, or by ranks that it left") from None
        start = _inflated_start(os.pread(self._file, _START, 0))
        if start != _OURS[: len(start)]:
            raise NotWritable(f"{self.path} is no run file of everyrank, and stays as it is: name another file")
        os.ftruncate(self._file, 0)

    def write(self, line: AnyLine) -> None:
        """Add a line. A disk that is full, say, is no reason to end the tests: ``trouble`` says so."""
        data = encoded(line) + b"\n"
        if self._deflate is not None:
            data = self._deflate.compress(data) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        self._append(data)

    def _append(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left and not self.trouble:
                left = left[os.write(self._file, left) :]
        except OSError as error:
            self.trouble = f"{self.path} could not be written to its end: {error.strerror}"

    def close(self) -> None:
        """The footer, if there is one, has been written."""
        if self._deflate is not None:
            self._append(self._deflate.flush())
        os.close(self._file)


def _inflated_start(data: bytes) -> bytes:
    """How a file begins, compressed or not, as far as it must be known."""
    if data[: len(GZIP)] != GZIP:
        return data[: len(_OURS)]
    try:
        start = zlib.decompressobj(GZIP_BITS).decompress(data, len(_OURS))
    except zlib.error:
        return data[: len(_OURS)]
    # Of a run that was killed at once there may be no more than gzip's own header.
    return start if start or len(data) < _LEAST else data[: len(_OURS)]


def encoded(value: Any) -> bytes:
    """As JSON; text that is no UTF-8 is escaped."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_clean(msgspec.to_builtins(value)))


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_clean(key): _clean(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(one) for one in value]
    return value
