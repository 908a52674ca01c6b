"""What a test says about the world that it wants: the mark ``world`` and the rank fixtures."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from everyrank.errors import MisuseError

#: The hidden parameter that a list of world sizes becomes.
SIZE_PARAMETER = "everyrank_world_size"

RANK_FIXTURES = ("world", "process_group", "rpc_agent", "warm_rpc_agent", "device")


@dataclass(frozen=True)
class Declaration:
    """A test's world, as declared. ``None`` means: what the run's options say."""

    sizes: tuple[int, ...] | None = None
    device: str | None = None
    gpus: int = 0
    backend: str | None = None
    timeout: float | None = None
    fresh: bool = False

    @property
    def chosen_backend(self) -> str:
        """Of the default group, on a machine that has the GPUs."""
        return self.backend or ("nccl" if self.gpus or self.device == "cuda" else "gloo")


def _mark(
    size: Any = None,
    *,
    device: Any = None,
    gpus: Any = 0,
    backend: Any = None,
    timeout: Any = None,
    fresh: Any = False,
) -> Declaration:
    """The mark's signature."""
    if device is not None and device not in ("cpu", "cuda"):
        raise MisuseError(f"device must be 'cpu' or 'cuda', not {device!r}")
    if isinstance(gpus, bool) or not isinstance(gpus, int) or gpus < 0:
        raise MisuseError(f"gpus must be how many GPUs the world needs, 0 or more, not {gpus!r}")
    if gpus and device == "cpu":
        raise MisuseError(f"gpus={gpus} asks for GPUs and device='cpu' for none: drop one of them")
    if backend is not None and not isinstance(backend, str):
        raise MisuseError(f"backend must be a name such as 'gloo', not {backend!r}")
    if timeout is not None and not is_seconds(timeout):
        raise MisuseError(f"timeout must be a number of seconds above 0, not {timeout!r}")
    if not isinstance(fresh, bool):
        raise MisuseError(f"fresh must be True or False, not {fresh!r}")
    try:
        wanted = None if size is None else sizes(size)
    except MisuseError as error:
        raise MisuseError(f"{error}; write world(4), or world([1, 2, 4]) to run the test once for each") from None
    return Declaration(wanted, device, gpus, backend, timeout, fresh)


def is_seconds(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0 and math.isfinite(value)


def sizes(value: Any) -> tuple[int, ...]:
    """A world size or a list of them."""
    wanted = list(value) if isinstance(value, (list, tuple, set, frozenset, range)) else [value]
    if not wanted:
        raise MisuseError("the list of world sizes is empty")
    for one in wanted:
        if isinstance(one, bool) or not isinstance(one, int) or one < 1:
            raise MisuseError(f"a world size must be a whole number of ranks, 1 or more, not {one!r}")
    if len(set(wanted)) < len(wanted):
        raise MisuseError(f"a world size is named twice in {wanted}")
    return tuple(wanted)


def from_mark(mark: pytest.Mark) -> Declaration:
    """Read a ``world`` mark; raises MisuseError with what to write instead."""
    try:
        bound = inspect.signature(_mark).bind(*mark.args, **mark.kwargs)
    except TypeError as error:
        raise MisuseError(
            f"the mark world: {error}; it takes a size, or a list of sizes, "
            "and the keywords device, gpus, backend, timeout and fresh"
        ) from None
    try:
        return _mark(*bound.args, **bound.kwargs)
    except MisuseError as error:
        raise MisuseError(f"the mark world: {error}") from None


def _is_ours(definition: Any) -> bool:
    return str(getattr(definition.func, "__module__", "")).startswith("everyrank.fixtures.")


def rank_fixtures(definitions: Mapping[str, Any]) -> list[str]:
    """The rank fixtures in a closure of fixtures. One that a project has overridden does not count,
    unless its override asks for ours."""
    found = []
    for name in RANK_FIXTURES:
        chain = definitions.get(name) or ()
        if chain and (_is_ours(chain[-1]) or (name in chain[-1].argnames and _is_ours(chain[0]))):
            found.append(name)
    return found


def misplaced(definitions: Mapping[str, Any], ours: list[str]) -> str:
    """A fixture that outlives one test but asks for something that does not: say so in our words."""
    for name, chain in definitions.items():
        for definition in chain:
            wanted = [one for one in definition.argnames if one in ours]
            if wanted and definition.scope != "function":
                return (
                    f"the {definition.scope} fixture {name!r} asks for the rank fixture {wanted[0]!r}, which "
                    f"lives in a rank, for one test: make {name!r} a function fixture"
                )
    return ""
