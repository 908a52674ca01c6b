"""Python imports this at its start if the folder is on its path: in what a test starts, under ``--adopt``.

It lets a rank of a script be watched; and torchrun, if a program turns out to be it, help the watcher. A rank may be
given a function, as module:function, to call when torch has been imported. Each program pays for what is imported
here, so that is next to nothing.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_FOLDER = os.path.dirname(os.path.abspath(__file__))
_TORCHRUN = "torch.distributed.elastic.multiprocessing.api"


class AfterImport:
    """Finds one module, once, as Python would, and calls a function with it after its import."""

    def __init__(self, name: str, function: Callable[[ModuleType], object]) -> None:
        self._name = name
        self._function = function

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            if self in sys.meta_path:  # here, as a program may ask for the spec and import it later
                sys.meta_path.remove(self)
            execute(module)
            try:
                self._function(module)
            except Exception:  # the program must run as it would without us
                return

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _help(api: ModuleType) -> None:
    from everyrank.scripts import agent

    agent.wrap(api)


def _watch() -> None:
    if not os.environ.get("RANK"):  # torchrun sets it for the processes of a script
        sys.meta_path.insert(0, AfterImport(_TORCHRUN, _help))
        return
    try:
        from everyrank.scripts import ranks

        ranks.start(AfterImport)
    except Exception:  # this interpreter may not have everyrank
        pass
    if function := os.environ.pop("EVERYRANK_AFTER_TORCH", ""):
        sys.meta_path.insert(0, AfterImport("torch", lambda _: _call(function)))


def _call(function: str) -> None:
    import importlib

    module, _, name = function.partition(":")
    getattr(importlib.import_module(module), name)()


def _import_the_users() -> None:
    """Import the module of this name that Python would have imported without this folder."""
    path = [entry for entry in sys.path if os.path.abspath(entry) != _FOLDER]
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        import importlib.util

        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("EVERYRANK_SCRIPTS"):
    _watch()
_import_the_users()
