"""What a run ran on: for the header of its run file."""

from __future__ import annotations

import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

#: Where NVIDIA's driver tells of each GPU: to read it initialises nothing, and needs no program.
_GPUS = Path("/proc/driver/nvidia/gpus")


def installed(package: str) -> str:
    """Its version, or nothing; asked of its metadata, since an import of torch would take seconds."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def gpus(folder: Path = _GPUS) -> list[str]:
    """The names of the machine's GPUs."""
    try:
        told = [one.read_text() for one in sorted(folder.glob("*/information"))]
    except OSError:
        return []
    found = [re.search(r"^Model:\s*(.+?)\s*$", text, re.MULTILINE) for text in told]
    return [match[1] for match in found if match is not None]


def system() -> str:
    """The platform in words."""
    return platform.platform()


def python() -> str:
    """The version of this Python."""
    return platform.python_version()
