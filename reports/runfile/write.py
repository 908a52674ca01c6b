"""Write run files. Each line is in the file as soon as its test ends, so a killed run leaves its lines.

That holds for compressed files (``.gz``) as well: each line is flushed and can be decompressed.
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
from everyrank.reports.runfile.inputs import GZIP, GZIP_BITS
from everyrank.reports.runfile.model import AnyLine

#: The first bytes of every run file.
_OURS = b'{"line":"header","schema":'

#: The bytes of an older file that are read to identify it, and the least bytes of a compressed file with contents.
_START, _LEAST = 1 << 16, 32


class NotWritable(Exception):
    """A run file cannot be written to the requested path; the file there stays unchanged."""


class RunFile:
    """An open run file, emptied and locked. A file that existed before must be a run file, whole or not."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trouble = ""  # why no more lines can be written
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
            raise NotWritable(f"{self.path} is not a plain file")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno != errno.EWOULDBLOCK:
                raise NotWritable(f"{self.path} cannot be locked: {error.strerror}") from None
            raise NotWritable(
                f"{self.path} is being written by another run, or by ranks that another run left behind"
            ) from None
        start = _inflated_start(os.pread(self._file, _START, 0))
        if start != _OURS[: len(start)]:
            raise NotWritable(f"{self.path} is not a run file of everyrank, and stays unchanged: name another file")
        os.ftruncate(self._file, 0)

    def write(self, line: AnyLine) -> None:
        """Add a line. A failure, such as a full disk, does not end the tests: ``trouble`` reports it."""
        data = encoded(line) + b"\n"
        if self._deflate is not None:
            data = self._deflate.compress(data) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        self._append(data)

    def _append(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest and not self.trouble:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            self.trouble = f"{self.path} could not be written completely: {error.strerror}"

    def close(self) -> None:
        """Close the file. Called after the footer."""
        if self._deflate is not None:
            self._append(self._deflate.flush())
        os.close(self._file)


def _inflated_start(data: bytes) -> bytes:
    """Return the first decompressed bytes of a file, enough to identify it."""
    if data[: len(GZIP)] != GZIP:
        return data[: len(_OURS)]
    try:
        start = zlib.decompressobj(GZIP_BITS).decompress(data, len(_OURS))
    except zlib.error:
        return data[: len(_OURS)]
    # A run that was killed at once may have written only gzip's own header.
    return start if start or len(data) < _LEAST else data[: len(_OURS)]


def encoded(value: Any) -> bytes:
    """Return the value as JSON. Text that is not valid UTF-8 is escaped."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_clean(msgspec.to_builtins(value)))


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    return value
