"""Reads torch's flight recorder, which is private: the collectives of this process on gloo."""

from __future__ import annotations

import contextlib
import pickle
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from everyrank.stack.frames import Frame, is_users
from everyrank.wire.messages import Collective, PlacedCall


def exists() -> bool:
    """Return whether this torch has a flight recorder."""
    return _recorder() is not None


def entries(with_stacks: bool = False) -> list[dict[str, Any]]:
    """Return the recorded collectives, the oldest first."""
    try:
        with _without_inductor() if with_stacks else contextlib.nullcontext():
            recorded = _dumped(with_stacks)
    except RuntimeError:  # a stack has a path that is not valid Unicode
        recorded = _dumped(with_stacks=False)
    return sorted((entry for entry in recorded if not entry["is_p2p"]), key=lambda entry: int(entry["record_id"]))


def _dumped(with_stacks: bool) -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = pickle.loads(_recorder()(True, with_stacks, False)).get("entries", [])
    return entries


@contextlib.contextmanager
def _without_inductor() -> Iterator[None]:
    """Keep torch from importing its compiler, for a second or more, to name the frames of what it has compiled.

    It is a lazy attribute of torch. A process that has imported it has what it needs.
    """
    torch = sys.modules["torch"]
    if "torch._inductor" in sys.modules:
        yield
        return
    cache = SimpleNamespace(stack_frames_for_code=lambda *_: None)
    torch.__dict__["_inductor"] = SimpleNamespace(codecache=SimpleNamespace(PyCodeCache=cache))
    try:
        yield
    finally:
        del torch.__dict__["_inductor"]


def last() -> Collective | None:
    """Return the last collective with a tensor that this process began; None if that is not known."""
    try:
        begun = [collective(entry) for entry in entries()]
    except Exception:  # the recorder is private
        return None
    return next((call for call in reversed(begun) if call.tensors), None)


def collective(entry: dict[str, Any]) -> Collective:
    shapes = ", ".join(str(tuple(shape)) for shape in entry["input_sizes"] or entry["output_sizes"])
    dtypes = ", ".join(dict.fromkeys(entry["input_dtypes"] or entry["output_dtypes"]))
    return Collective(
        group=entry["process_group"][0],
        number=entry["collective_seq_id"],
        name=_name(entry),
        tensors=f"{shapes} {dtypes}".strip(),
    )


def calls(recorded: list[dict[str, Any]]) -> dict[str, list[PlacedCall]]:
    """Return what the user's code called in each group, from its first collective in these entries on.

    A group whose numbers have a gap is left out: then a call does not stand at its number.
    """
    by_group: dict[str, list[PlacedCall]] = {}
    numbers: dict[str, list[int]] = {}
    for entry in recorded:
        group = entry["process_group"][0]
        by_group.setdefault(group, []).append(PlacedCall(_name(entry), _location(entry)))
        numbers.setdefault(group, []).append(entry["collective_seq_id"])
    return {group: calls for group, calls in by_group.items() if _are_successive(numbers[group])}


def _are_successive(numbers: list[int]) -> bool:
    return numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def _location(entry: dict[str, Any]) -> str:
    """Return the user's line that made a call. torch notes the stack of each, innermost frame first."""
    frames = (Frame(frame["filename"], frame["line"], frame["name"]) for frame in entry.get("frames", ()))
    return next((str(frame) for frame in frames if is_users(frame.file)), "")


def _name(entry: dict[str, Any]) -> str:
    return str(entry["profiling_name"].partition(":")[2])


def _recorder() -> Any:
    c10d = sys.modules.get("torch._C._distributed_c10d")
    return getattr(c10d, "_dump_fr_trace", None)
