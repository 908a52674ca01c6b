"""The files of the project: those that git tracks, or those of the source distribution that was unpacked here."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]

_SOURCES = ROOT / "everyrank.egg-info" / "SOURCES.txt"

#: What setuptools adds to a source distribution.
_MADE = ("everyrank.egg-info/", "setup.cfg", "PKG-INFO")


class Unknown(Exception):
    """Nothing here knows which files belong to the project."""


def project_files(untracked: bool = False) -> list[str]:
    """Return the files of the project that are there; in a checkout, with those that git would track if asked for."""
    if (ROOT / ".git").exists():
        options = ["--cached", "--others", "--exclude-standard"] if untracked else []
        command = ["git", "ls-files", "-z", *options]
        names = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.split("\0")
    elif _SOURCES.exists():
        names = [name for name in _SOURCES.read_text().splitlines() if not name.startswith(_MADE)]
    else:
        raise Unknown("only a git checkout or a source distribution knows which files belong to the project")
    return sorted(name for name in {*names} if name and (ROOT / name).is_file())
