"""Look at what is installed: the plugin, torch's backends, and the packages that some tests need."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import TYPE_CHECKING

from everyrank.doctor.answer import BAD, NOTE, OK, Answer
from everyrank.rpc.agents import numpy_missing

if TYPE_CHECKING:
    from everyrank.devices.protocol import DeviceType

#: Packages that some runs need: what for.
_FOR_SOME = {
    "pytest-xdist": "pytest -n auto",
    "pytest-timeout": "the mark timeout; its limit ends a world as a whole",
    "expecttest": "pytest --adopt, for files on torch.testing._internal",
    "hypothesis": "drawn sequences (--generate)",
    "ray": "worlds on a Ray cluster (--launcher=ray)",
}

#: Whether a process may be forked after torch is imported: forks have none of its threads.
_THREADS = "import os, torch, torch.distributed; print(len(os.listdir('/proc/self/task')) - 1)"


def plugin() -> Answer:
    """Whether pytest loads everyrank without an option."""
    if not any(entry.name == "everyrank" for entry in entry_points(group="pytest11")):
        return Answer(
            "plugin",
            BAD,
            "everyrank can be imported but is not installed, so pytest does not load it",
            "pip install path/to/everyrank, into the environment of this interpreter",
        )
    if "no:everyrank" in os.environ.get("PYTEST_ADDOPTS", "").replace("-p ", "-p"):
        return Answer("plugin", NOTE, "PYTEST_ADDOPTS turns everyrank off: multi-rank tests are skipped", "unset it")
    if os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD"):
        return Answer(
            "plugin",
            NOTE,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD is set, so pytest loads no plugin that is not named",
            "unset it, or run pytest -p everyrank",
        )
    return Answer("plugin", OK, "pytest loads everyrank without an option")


def torch() -> Iterator[Answer]:
    """What the installed torch can run; nothing else is asked about torch if there is none."""
    try:
        import torch
        import torch.distributed as dist
    except Exception as error:
        text = f"it cannot be imported: {type(error).__name__}: {error}"
        yield Answer("torch", BAD, text, "pip install torch, into the environment of this interpreter")
        return
    if not dist.is_available():
        yield Answer(
            "torch", BAD, f"torch {torch.__version__} was built without torch.distributed", "install another"
        )
        return
    yield Answer("torch", OK, torch.__version__)
    if dist.is_gloo_available():
        yield Answer("gloo", OK, "worlds on the CPU")
    else:
        yield Answer("gloo", BAD, "this torch was built without gloo", "install another build, or use backend=")
    yield from _devices()
    yield _rpc()


def _devices() -> Iterator[Answer]:
    from everyrank.devices import device_types
    from everyrank.errors import MisuseError

    for name in device_types.names():
        try:
            yield _of_type(device_types.find(name))
        except MisuseError as error:
            yield Answer(f"{name.upper()}s", BAD, str(error), "mend the package, or uninstall it")


def _of_type(kind: DeviceType) -> Answer:
    import torch.distributed as dist
    from everyrank.devices import device_types

    gpus, known, name = device_types.found(kind), kind.on_this_machine(), f"{kind.title}s"
    available = kind.backend is None or dist.is_backend_available(kind.backend)
    if gpus and not available:
        missing = str(kind.backend).upper()
        return Answer(name, NOTE, f"{len(gpus)}, and this torch has no {missing}", f"install a build with {missing}")
    if gpus:
        return Answer(name, OK, f"{len(gpus)}: {', '.join(sorted({gpu.name or gpu.uuid for gpu in gpus}))}")
    if known and not available:
        advice = f"install a {kind.name.upper()} build"
        return Answer(name, NOTE, f"the driver knows {known}, and this torch cannot use them", advice)
    if known:
        text = f"the driver knows {known}, and this process may use none"
        return Answer(name, NOTE, text, f"look at {kind.variable} in the environment")
    return Answer(name, NOTE, f"none: tests that need {name} are skipped")


def _rpc() -> Answer:
    from torch.distributed import rpc

    if not rpc.is_available():
        return Answer("RPC", NOTE, "this torch was built without RPC: tests with an agent fail")
    if missing := numpy_missing():
        return Answer("RPC", NOTE, missing, "pip install numpy")
    return Answer("RPC", OK, "tests with an agent")


def fork() -> Answer:
    """Whether ranks may be forks of a process that has imported torch."""
    if not hasattr(os, "fork"):
        return Answer("fork", NOTE, "this system has none", "use --launcher=spawn")
    if sys.platform != "linux":
        return Answer("fork", NOTE, f"no test of everyrank has run on {sys.platform}", "try --launcher=spawn")
    as_zygotes = {**os.environ, "OMP_NUM_THREADS": "1"}
    asked = subprocess.run(
        [sys.executable, "-c", _THREADS], capture_output=True, text=True, check=False, env=as_zygotes
    )
    if asked.returncode:
        last = asked.stderr.strip().rsplit("\n", 1)[-1]
        return Answer("fork", BAD, f"a new interpreter cannot import torch: {last}", "run: python -c 'import torch'")
    if threads := int(asked.stdout):
        text = f"importing torch starts threads ({threads}), which forks do not have: they may wait for them for ever"
        return Answer("fork", NOTE, text, "use --launcher=spawn if worlds hang")
    return Answer("fork", OK, "importing torch starts no thread, so ranks are forked")


def packages() -> Iterator[Answer]:
    """Which packages are installed that everyrank does not install."""
    for name, purpose in _FOR_SOME.items():
        try:
            yield Answer(name, OK, f"{version(name)}: {purpose}")
        except PackageNotFoundError:
            yield Answer(name, NOTE, f"not installed; it is for {purpose}", f"pip install {name}")
