"""Write a result to a file: all of it or nothing, and never over one of its inputs."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable
from pathlib import Path

from everyrank.reports.errors import CannotWrite


def keep(path: Path | str, data: str | bytes, made_of: Iterable[Path | str] = ()) -> None:
    """Write to a temporary file beside, then rename it; a failure changes nothing. Raise `CannotWrite`."""
    path = Path(path)
    raw = data.encode("utf-8", "backslashreplace") if isinstance(data, str) else data
    try:
        # A link stays a link: its target is written.
        target = path.resolve()
        for source in made_of:
            if target.exists() and os.path.exists(source) and target.samefile(source):
                raise CannotWrite(f"{path}: is an input of the command: choose another name")
        if path.exists() and not path.is_file() and not path.is_dir():
            _write_to_device(path, raw)  # a pipe or a device cannot be renamed over
        else:
            _replace(target, raw)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CannotWrite(f"{path}: cannot be written: {reason}") from None


def _write_to_device(path: Path, raw: bytes) -> None:
    try:
        fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ENXIO and path.is_fifo():
            raise OSError(errno.ENXIO, "it is a pipe that nobody reads") from None
        raise
    os.set_blocking(fd, True)
    with os.fdopen(fd, "wb") as file:
        file.write(raw)


def _replace(target: Path, raw: bytes) -> None:
    beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    if target.is_dir():
        raise IsADirectoryError(21, "is a folder")
    # A file that may not be written is not replaced either, although the folder would allow it.
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(13, "it is read-only")
    with contextlib.suppress(FileNotFoundError):
        beside.unlink()
    try:
        with beside.open("xb") as file:
            file.write(raw)
        if target.exists():
            beside.chmod(target.stat().st_mode & 0o7777)
        beside.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
