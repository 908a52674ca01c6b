"""Describe the host of a run, for the header of its run file."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

#: The folder in which NVIDIA's driver describes each GPU. Reading it initialises nothing and needs no program.
_GPUS = Path("/proc/driver/nvidia/gpus")


def installed(package: str) -> str:
    """Return a package's version, or an empty text. Read its metadata: an import of torch would take seconds."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def gpus(folder: Path = _GPUS) -> list[str]:
    """Return the names of the host's GPUs."""
    try:
        texts = [file.read_text() for file in sorted(folder.glob("*/information"))]
    except OSError:
        return []
    matches = [re.search(r"^Model:\s*(.+?)\s*$", text, re.MULTILINE) for text in texts]
    return [match[1] for match in matches if match is not None]
