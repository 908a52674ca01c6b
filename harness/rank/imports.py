"""Find the modules that a rank imports and its zygote had not: those of installed packages, never those of tests."""

from __future__ import annotations

import functools
import itertools
import os
import site
import sys
import sysconfig
from pathlib import Path


class Imports:
    """The modules that this process has imported since it was forked."""

    def __init__(self, rootdir: Path) -> None:
        self._rootdir = os.path.realpath(rootdir)
        self._known = len(sys.modules)

    def new(self) -> list[str]:
        """Return the modules of installed packages that were imported since the last call, the outermost first.

        ``sys.modules`` lists a module when its import has ended, after the modules that it imported itself. Read
        from its end, the list gives the order in which the imports began here.
        """
        number, self._known = len(sys.modules) - self._known, len(sys.modules)
        if number <= 0:
            return []
        # Read only the end of the list: a forked rank pays for each page that it touches.
        try:
            names = [*itertools.islice(reversed(sys.modules), number)]
        except RuntimeError:  # another thread is importing
            return []
        return [name for name in names if is_installed(name, self._rootdir)]


def is_installed(name: str, rootdir: str) -> bool:
    """Return whether a module belongs to an installed package or to Python, and not to the user."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    if spec is None or spec.name != name or not spec.has_location or not isinstance(spec.origin, str):
        return False  # made by hand, built in, or without a file: it cannot be judged, or costs nothing
    folder = _folder(os.path.dirname(spec.origin))
    homes = [home for home in _homes() if folder.startswith(home)]
    if not homes or "conftest" in name.split("."):
        return False
    # Tests of an installed package (--pyargs) lie among the installed packages.
    own = any(f"{rootdir}{os.sep}".startswith(home) for home in homes)
    return not (own and folder.startswith(f"{rootdir}{os.sep}"))


@functools.lru_cache(maxsize=4096)
def _folder(path: str) -> str:
    """Return the real path of a folder: an installed package may be a link to a development folder."""
    return os.path.realpath(path) + os.sep


@functools.cache
def _homes() -> tuple[str, ...]:
    """Return the folders of installed packages and of Python's own modules."""
    paths = sysconfig.get_paths()
    homes = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    homes += getattr(site, "getsitepackages", list)()
    if site.ENABLE_USER_SITE:
        homes.append(site.getusersitepackages())
    return tuple({os.path.realpath(home) + os.sep for home in homes})
