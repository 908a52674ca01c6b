"""What a rank imports that its zygote had not: modules of installed packages, never those of the tests."""

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
        """Names of modules of installed packages that came since this was last asked, the outermost first.

        A module is listed when its import has ended, so that what it imported itself stands before it: from the
        end of the list backwards, each is imported as it was here, and finds the rest already done.
        """
        number, self._known = len(sys.modules) - self._known, len(sys.modules)
        if number <= 0:
            return []
        # Only the end of the list is looked at: a forked rank pays for each page that it touches.
        try:
            names = [*itertools.islice(reversed(sys.modules), number)]
        except RuntimeError:  # another thread is importing
            return []
        return [name for name in names if is_installed(name, self._rootdir)]


def is_installed(name: str, rootdir: str) -> bool:
    """Whether a module is of an installed package or of Python itself, and not the user's own."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    if spec is None or spec.name != name or not spec.has_location or not isinstance(spec.origin, str):
        return False  # made by hand, built in, or of no file: nothing that could be judged, or is worth it
    folder = _folder(os.path.dirname(spec.origin))
    homes = [home for home in _homes() if folder.startswith(home)]
    if not homes or "conftest" in name.split("."):
        return False
    # Tests of an installed package (--pyargs) stand among what is installed.
    own = any(f"{rootdir}{os.sep}".startswith(home) for home in homes)
    return not (own and folder.startswith(f"{rootdir}{os.sep}"))


@functools.lru_cache(maxsize=4096)
def _folder(path: str) -> str:
    """Where a folder is: a package that is developed may be linked to from among those that are installed."""
    return os.path.realpath(path) + os.sep


@functools.cache
def _homes() -> tuple[str, ...]:
    """Where installed packages are, and Python's own."""
    paths = sysconfig.get_paths()
    homes = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    homes += getattr(site, "getsitepackages", list)()
    if site.ENABLE_USER_SITE:
        homes.append(site.getusersitepackages())
    return tuple({os.path.realpath(home) + os.sep for home in homes})
