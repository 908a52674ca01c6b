"""What a test declares about its world: the mark ``world`` and the rank fixtures."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from everyrank.declare.values import is_seconds, sizes
from everyrank.devices import device_types
from everyrank.devices.cuda import CUDA
from everyrank.devices.protocol import DeviceType, bytes_of
from everyrank.errors import MisuseError
from everyrank.model.fault import Fault

#: The hidden parameter that a list of world sizes becomes.
SIZE_PARAMETER = "everyrank_world_size"

RANK_FIXTURES = ("world", "process_group", "rpc_agent", "warm_rpc_agent", "device")


@dataclass(frozen=True)
class Declaration:
    """A test's world, as the test declares it. For ``None``, the run's options decide."""

    sizes: tuple[int, ...] | None = None
    device: str | None = None
    gpus: int | float | None = None  # a fraction is the world's share of one GPU
    gpu_memory: int = 0  # bytes that each GPU must have
    capability: tuple[int, int] | None = None
    p2p: bool = False
    spread: bool = False  # each rank on another host
    gpus_if_any: bool = False  # take GPUs if the machine has any: for classes, which cannot declare their needs
    backend: str | None = None
    timeout: float | None = None
    fresh: bool = False
    timeout_from: str = "the mark world"
    company: str = ""
    """Tests share a world only if their ``company`` is equal."""
    faults: tuple[Fault, ...] = ()
    """The faults on purpose of the mark ``faults``."""
    fixtures: tuple[str, ...] = ()
    """The rank fixtures that the test asks for."""

    @property
    def chosen_backend(self) -> str:
        """Return the backend of the default group on a machine that has the GPUs."""
        on_gpus = self.gpus or self.names_type
        return self.backend or (on_gpus and self.device_type.backend) or "gloo"

    @property
    def names_type(self) -> bool:
        """Whether the test names a type of devices besides the CPU."""
        return self.device not in (None, "cpu")

    @property
    def device_type(self) -> DeviceType:
        """Return the type of the GPUs that the test may get: it names the type, or a backend of it, or means CUDA."""
        if self.device is not None and self.names_type:
            return device_types.find(self.device)
        return next((kind for kind in device_types.known() if kind.backend in backends(self.backend)), CUDA)


def backends(text: str | None) -> list[str]:
    """Return the names of backends in a text such as ``gloo``, or ``cpu:gloo,cuda:nccl``."""
    return [] if text is None else [part.rpartition(":")[2].lower() for part in text.split(",")]


def _mark(
    size: Any = None,
    *,
    device: Any = None,
    gpus: Any = None,
    gpu_memory: Any = 0,
    capability: Any = None,
    p2p: Any = False,
    spread: Any = False,
    backend: Any = None,
    timeout: Any = None,
    fresh: Any = False,
) -> Declaration:
    """Check the mark's arguments and make a declaration of them; the parameters are the mark's signature."""
    if device is not None and device not in ("cpu", "cuda"):
        if device not in (known := device_types.names()):
            raise MisuseError(f"device must be 'cpu' or {' or '.join(map(repr, known))}, not {device!r}")
        device_types.find(device)
    if gpus is not None and not _is_gpus(gpus):
        raise MisuseError(
            "gpus must be the number of GPUs that the world needs, 0 or more, or its share of one GPU, "
            f"such as 0.5, not {gpus!r}"
        )
    try:
        memory = bytes_of(gpu_memory)
    except ValueError:
        raise MisuseError(f"gpu_memory must be a text such as '20GB', or bytes, not {gpu_memory!r}") from None
    if capability is not None and not _is_capability(capability):
        raise MisuseError(f"capability must be a pair such as (8, 0), not {capability!r}")
    for name, value in {"p2p": p2p, "spread": spread, "fresh": fresh}.items():
        if not isinstance(value, bool):
            raise MisuseError(f"{name} must be True or False, not {value!r}")
    asks = {"gpus": gpus, "gpu_memory": gpu_memory, "capability": capability, "p2p": p2p}
    named = None if device == "cpu" else device
    for name, value in asks.items():
        if value and device == "cpu":
            raise MisuseError(f"{name}={value!r} asks for GPUs and device='cpu' for none: drop one of them")
    if gpus == 0 and (implied := [f"{name}={value!r}" for name, value in {"device": named, **asks}.items() if value]):
        raise MisuseError(f"{implied[0]} asks for GPUs and gpus=0 for none: drop one of them")
    if p2p and gpus is not None and gpus < 2:
        raise MisuseError(f"p2p=True is about two GPUs or more, and gpus={gpus!r} asks for fewer")
    if backend is not None and not isinstance(backend, str):
        raise MisuseError(f"backend must be a name such as 'gloo', not {backend!r}")
    if timeout is not None and not is_seconds(timeout):
        raise MisuseError(f"timeout must be a number of seconds above 0, not {timeout!r}")
    try:
        world_sizes = None if size is None else sizes(size)
    except MisuseError as error:
        raise MisuseError(f"{error}; write world(4), or world([1, 2, 4]) to run the test once for each") from None
    return Declaration(
        world_sizes,
        device,
        gpus,
        memory,
        None if capability is None else (capability[0], capability[1]),
        p2p,
        spread,
        backend=backend,
        timeout=timeout,
        fresh=fresh,
    )


def _is_gpus(value: object) -> bool:
    if isinstance(value, bool):
        return False
    return (isinstance(value, int) and value >= 0) or (isinstance(value, float) and 0 < value < 1)


def _is_capability(value: object) -> bool:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        return False
    return all(isinstance(part, int) and not isinstance(part, bool) and part >= 0 for part in value)


def from_mark(mark: pytest.Mark) -> Declaration:
    """Read a ``world`` mark. Raise MisuseError, with what to write instead, if it is wrong."""
    try:
        bound = inspect.signature(_mark).bind(*mark.args, **mark.kwargs)
    except TypeError as error:
        raise MisuseError(
            f"the mark world: {error}; it takes a size, or a list of sizes, "
            "and the keywords device, gpus, gpu_memory, capability, p2p, spread, backend, timeout and fresh"
        ) from None
    try:
        return _mark(*bound.args, **bound.kwargs)
    except MisuseError as error:
        raise MisuseError(f"the mark world: {error}") from None


def _is_ours(definition: Any) -> bool:
    return str(getattr(definition.func, "__module__", "")).startswith("everyrank.fixtures.")


def rank_fixtures(definitions: Mapping[str, Any]) -> list[str]:
    """Return the names of the rank fixtures in a closure of fixtures.

    A fixture that a project overrides does not count, unless the override asks for ours.
    """
    names = []
    for name in RANK_FIXTURES:
        chain = definitions.get(name) or ()
        if chain and (_is_ours(chain[-1]) or (name in chain[-1].argnames and _is_ours(chain[0]))):
            names.append(name)
    return names


def describe_wrong_scope(definitions: Mapping[str, Any], fixtures: list[str]) -> str:
    """Describe a fixture that outlives one test but asks for a rank fixture, which does not; "" if there is none."""
    for name, chain in definitions.items():
        for definition in chain:
            arguments = [argument for argument in definition.argnames if argument in fixtures]
            if arguments and definition.scope != "function":
                return (
                    f"the {definition.scope} fixture {name!r} asks for the rank fixture {arguments[0]!r}, which "
                    f"lives in a rank, for one test: make {name!r} a function fixture"
                )
    return ""
