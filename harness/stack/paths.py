"""Classify a source file by its path (a library's, Python's, a program's or the user's), and shorten its path.

The functions depend on no state of this process except the folder in which it was started, since `everyrank stacks`
reads the paths of other processes. A path may contain links or `..`, so each is checked as given and resolved.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import sysconfig
from importlib.machinery import PathFinder

_HARNESS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_INSTALLED = re.compile(r".*[/\\](?:site|dist)-packages[/\\]")
#: Files that mark a project's root folder for pytest, in its order: those that configure it, then those that may.
_CONFIGURES = (
    ("pytest.toml", ""),
    (".pytest.toml", ""),
    ("pytest.ini", ""),
    (".pytest.ini", ""),
    ("pyproject.toml", "[tool.pytest"),
    ("tox.ini", "[pytest]"),
    ("setup.cfg", "[tool:pytest]"),
)
_MAY_CONFIGURE = (("pyproject.toml", ""), ("setup.py", ""))
#: How the names of code begin that somebody typed at a prompt, of Python or IPython.
_PROMPTS = ("<stdin", "<console>", "<python-input-", "<ipython-input-")
#: The names of other code without a file that belongs to the user, such as that of ``python -c``.
_typed: set[str] = set()
#: Libraries that may lie outside of site-packages, such as in a folder on PYTHONPATH.
_KNOWN = ("_pytest", "execnet", "pluggy", "pytest", "torch", "xdist")


def _started_in() -> str:
    try:
        return os.getcwd()
    except OSError:  # the folder was removed
        return os.sep


_START = _started_in()


@functools.lru_cache(maxsize=4096)
def is_of_library(file: str) -> bool:
    """Return whether a file belongs to an installed library, to Python, or to a program such as ``bin/pytest``."""
    if file.startswith("<"):  # the name of code that was made of a text
        return not (file.startswith(_PROMPTS) or file in _typed)
    return bool(_library_folder(file)) or _is_program(file)


def add_typed(file: str) -> None:
    """From now on, code of this name belongs to the user. Libraries make code of a text, too."""
    _typed.add(file)
    is_of_library.cache_clear()


@functools.lru_cache(maxsize=4096)
def is_of_stdlib(file: str) -> bool:
    """Return whether a file belongs to Python's standard library."""
    if _INSTALLED.match(file):
        return False
    return file.startswith("<frozen") or os.path.realpath(file).startswith(_python())


@functools.lru_cache(maxsize=4096)
def shown(file: str) -> str:
    """Return a path relative to the root folder of its project, or to the folder that holds its package."""
    folder = _library_folder(file)
    if folder:
        return file[len(folder) :] if file.startswith(folder) else os.path.realpath(file)[len(folder) :]
    if file.startswith("<"):
        return file
    path = os.path.normpath(os.path.join(_START, file))
    return os.path.relpath(path, _root(os.path.dirname(path)))


def _library_folder(file: str) -> str:
    """Return the folder that holds this file's package, if it is a library's; otherwise ""."""
    if match := _INSTALLED.match(file):
        return match[0]
    if match := _INSTALLED.match(path := os.path.realpath(file)):
        return match[0]
    for folder in _python():
        if path.startswith(folder):
            return folder
    for package in _known_packages():
        if file.startswith(package + os.sep) or path.startswith(package + os.sep):
            return os.path.dirname(package) + os.sep
    return ""


@functools.cache
def _python() -> tuple[str, ...]:
    """Return the folders of Python's standard library, resolved."""
    paths = sysconfig.get_paths()
    folders = {os.path.realpath(paths[name]) for name in ("stdlib", "platstdlib")}
    return tuple(folder + os.sep for folder in sorted(folders))


@functools.cache
def _known_packages() -> tuple[str, ...]:
    """Return the folders of known libraries, wherever they are installed, and of the harness."""
    folders = [_HARNESS]
    for name in _KNOWN:
        spec = sys.modules[name].__spec__ if name in sys.modules else PathFinder.find_spec(name)
        for location in (spec.submodule_search_locations if spec else None) or ():
            folders += [location, os.path.realpath(location)]
    return tuple(dict.fromkeys(folders))


def _is_program(file: str) -> bool:
    """Return whether a file was installed beside a Python interpreter."""
    folder = os.path.dirname(os.path.realpath(os.path.join(_START, file)))
    if folder == os.path.realpath(os.path.dirname(sys.executable)):
        return True
    return os.path.basename(folder) in ("bin", "Scripts") and os.path.exists(os.path.join(folder, "..", "pyvenv.cfg"))


@functools.lru_cache(maxsize=1024)
def _root(folder: str) -> str:
    """Return the root folder of a project as pytest would find it.

    Without one, it is the folder in which this process was started; for files outside of it, their package's folder.
    """
    above = [folder]
    while os.path.dirname(above[-1]) != above[-1]:
        above.append(os.path.dirname(above[-1]))
    for files in (_CONFIGURES, _MAY_CONFIGURE):
        for parent in above:
            if any(_holds(os.path.join(parent, name), text) for name, text in files):
                return parent
    if _START in above[:-1]:
        return _START
    return next(parent for parent in above if not os.path.exists(os.path.join(parent, "__init__.py")))


def _holds(path: str, text: str) -> bool:
    try:
        with open(path, errors="replace") as file:
            return text in file.read()
    except OSError:
        return False
