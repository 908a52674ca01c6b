"""The spawn launcher: ranks are clean interpreters, which collect the test's file again.

torch takes most of the time in which such a rank starts. So the keeper has a successor that imports torch and pytest
once, in a clean interpreter, and forks the ranks; whatever is imported from the tests' side is imported after that
fork. Without a safe fork, and with ``everyrank_preload = false``, each rank is a new interpreter.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from everyrank.launch.local import LocalLauncher
from everyrank.launch.protocol import LaunchContext
from everyrank.wire.keepers import Preload
from everyrank.wire.messages import Collect

if TYPE_CHECKING:
    import pytest


#: The module of the keeper, which makes ranks of clean interpreters.
_KEEPER = "everyrank.rank.spawned"


def launch(context: LaunchContext) -> LocalLauncher:
    """Start the keeper, which has imported neither torch nor the tests."""
    folder = context.new_folder()
    with context.terminal():  # clean interpreters inherit the real streams, for a debugger
        return start_keeper(folder, context.print_live, context.cores)


def start_keeper(folder: str, live: bool = False, cores: Sequence[int] | None = None) -> LocalLauncher:
    """Start a keeper with this folder, on these cores, and wait until it is ready."""
    controller_end, keeper_end = socket.socketpair()
    keeper = subprocess.Popen(
        [sys.executable, "-m", _KEEPER, str(keeper_end.fileno()), str(os.getpid()), folder, *map(str, cores or ())],
        pass_fds=[keeper_end.fileno()],
        env=_environment(),
    )
    keeper_end.close()
    launcher = LocalLauncher("spawn", keeper.pid, controller_end, live, folder)
    launcher.handshake()
    # The launcher reaps it; without this, Popen would warn that it was not reaped.
    keeper.returncode = 0
    return launcher


#: What many tests import and no rank changes by it. A rank imports the rest itself.
_OF_TORCH = (
    "numpy",
    "torch",
    "torch.distributed",
    "torch.distributed.rpc",
    "torch.distributed.tensor",
    "torch.distributed.fsdp",
    "torch.multiprocessing",
    "torch.testing",
    "torch._dynamo",
)

#: These imports may take this many seconds. A rank that has to import torch from a slow file system takes as long.
_IMPORTS = 120.0


def imports_of_ranks() -> Preload:
    """Return the order to import, once for all ranks, pytest and what this process has imported of torch."""
    from _pytest.config import default_plugins

    # No other plugin: pytest warns of one that it was to rewrite and finds imported, and a warning may be an error.
    pytests = [f"_pytest.{name}" for name in default_plugins]
    return Preload([*pytests, "everyrank.rank.start", *(n for n in _OF_TORCH if n in sys.modules)], _IMPORTS)


#: Options that choose tests or processes. A spawned rank has one file and one process, so they stay behind.
_LEFT_OUT = {
    "basetemp",
    "cacheclear",
    "collectonly",
    "dist",
    "file_or_dir",
    "junitxml",
    "keyword",
    "lf",
    "failedfirst",
    "looponfail",
    "markexpr",
    "maxfail",
    "newfirst",
    "numprocesses",
    "override_ini",
    "plugins",
    "px",
    "stepwise",
    "tx",
    "xmlpath",
    "inifilename",
    "rootdir",
    "randomly_seed",
}


#: pytest's complaint that it cannot rewrite this package's asserts, which a rank has imported before pytest
#: starts. If an ini file turns warnings into errors, no rank would start.
_IMPORTED = "ignore:Module already imported so cannot be rewritten; everyrank:pytest.PytestAssertRewriteWarning"


class MadeInRank:
    """The value of an option that is made only if it travels to ranks that are no forks."""

    def __init__(self, make: Callable[[], str]) -> None:
        self.make = make


def _travels(name: str, value: object) -> bool:
    if name in _LEFT_OUT:
        return False
    if isinstance(value, list):
        return all(isinstance(entry, str) for entry in value)
    return value is None or isinstance(value, (str, int, float, bool))


def collect(
    config: pytest.Config,
    file: str,
    name: str,
    environment: dict[str, str],
    coverage: dict[str, Any],
    own_folder: str = "",
    working_dir: str = "",
) -> Collect:
    """Return the controller's options, narrowed to one file, for a rank in a clean interpreter.

    A rank that does not share this host's files has ``own_folder`` for its temp folders.
    """
    args = ["--rootdir", str(config.rootpath), "-W", _IMPORTED, file]
    if config.inipath is not None:
        args = ["-c", str(config.inipath), *args]
    for plugin in config.option.plugins:
        args += ["-p", plugin]
    for pair in config.getoption("override_ini") or []:
        args += ["-o", pair]
    values = {
        name: value.make() if isinstance(value, MadeInRank) else value for name, value in vars(config.option).items()
    }
    options = {name: value for name, value in values.items() if _travels(name, value)}
    factory: Any = getattr(config, "_tmp_path_factory", None)
    if factory is not None:
        options["basetemp"] = os.path.join(own_folder or str(factory.getbasetemp()), name)
    start = str(config.invocation_params.dir)
    return Collect(args, options, start, file, sys.path, environment, coverage, working_dir)


def _environment() -> dict[str, str]:
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    # torchrun does the same. OpenBLAS, which numpy loads, starts a thread for each core otherwise, and a process with
    # threads forks no ranks.
    environment["OMP_NUM_THREADS"] = "1"
    # All ranks get one hash seed: so a parametrization that iterates over a set is the same on each.
    if environment.get("PYTHONHASHSEED", "random") == "random":
        environment["PYTHONHASHSEED"] = "0"
    return environment
