"""Reads torch's flight recorder, which is private: the collectives of this process on gloo."""

from __future__ import annotations

import json
import sys
from typing import Any

from everyrank.wire.messages import Collective


def exists() -> bool:
    """Return whether this torch has a flight recorder."""
    return _recorder() is not None


def entries() -> list[dict[str, Any]]:
    """Return the recorded collectives, the oldest first."""
    recorded: list[dict[str, Any]] = json.loads(_recorder()(True, False)).get("entries", [])
    return sorted((entry for entry in recorded if not entry["is_p2p"]), key=lambda entry: int(entry["record_id"]))


def last() -> Collective | None:
    """Return the last collective with a tensor that this process began; None if that is not known."""
    try:
        begun = [collective(entry) for entry in entries()]
    except Exception:  # the recorder is private
        return None
    return next((found for found in reversed(begun) if found.tensors), None)


def collective(entry: dict[str, Any]) -> Collective:
    shapes = ", ".join(str(tuple(shape)) for shape in entry["input_sizes"] or entry["output_sizes"])
    dtypes = ", ".join(dict.fromkeys(entry["input_dtypes"] or entry["output_dtypes"]))
    return Collective(
        group=entry["process_group"][0],
        number=entry["collective_seq_id"],
        name=entry["profiling_name"].partition(":")[2],
        tensors=f"{shapes} {dtypes}".strip(),
    )


def _recorder() -> Any:
    c10d = sys.modules.get("torch._C._distributed_c10d")
    return getattr(c10d, "_dump_fr_trace_json", None)
