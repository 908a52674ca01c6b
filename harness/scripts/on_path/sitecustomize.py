"""Python imports this at its start if the folder is on its path: in what a test starts, under ``--adopt``."""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib.machinery import PathFinder

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def _import_the_users() -> None:
    """Import the module of this name that Python would have imported without this folder."""
    path = [entry for entry in sys.path if os.path.abspath(entry) != _FOLDER]
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _watch() -> None:
    try:
        from everyrank.scripts.start import start

        start()
    except Exception:  # the program must run as it would without us; this interpreter may not have everyrank
        pass


if os.environ.get("EVERYRANK_SCRIPTS"):
    _watch()
_import_the_users()
