"""Reads NCCL's flight recorder, which is private to torch: what this rank's GPU was asked to do with others."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from everyrank.wire.messages import NcclCall, OnNccl

#: A call that the GPU has begun; without TORCH_NCCL_ENABLE_TIMING=1 torch only knows those that are over.
_OVER, _STARTED = "completed", "started"
#: How many calls older releases record; later ones record as many without being asked to.
_CALLS = 2000


def has_recorder() -> bool:
    """Return whether this torch was built with NCCL."""
    return _dump() is not None


def turn_on() -> None:
    """Let torch record before the first group is made. Releases that do not record gloo must be asked to."""
    c10d = sys.modules.get("torch._C._distributed_c10d")
    if has_recorder() and not hasattr(c10d, "_dump_fr_trace_json"):
        os.environ.setdefault("TORCH_NCCL_TRACE_BUFFER_SIZE", str(_CALLS))


def report(test: int, began: int) -> OnNccl:
    """Return what was called on NCCL since a time in ns."""
    try:
        return _shown(test, began, json.loads(_dump()(True, False)).get("entries", []))
    except Exception as error:  # after a fault on the GPU, CUDA does not say what is over; and the format is private
        return OnNccl(test, problem=f"{type(error).__name__}: {error}".splitlines()[0])


def _shown(test: int, began: int, recorded: list[dict[str, Any]]) -> OnNccl:
    ordered = sorted(recorded, key=lambda entry: int(entry["record_id"]))
    calls = [entry for entry in ordered if entry["time_created_ns"] >= began]
    pending = [entry for entry in calls if not (entry["retired"] or entry["state"] == _OVER)]
    return OnNccl(
        test,
        first=_call(pending[0]) if pending else None,
        last=_call(calls[-1]) if calls else None,
        pending=len(pending),
        begun=len(calls),
    )


def _call(entry: dict[str, Any]) -> NcclCall:
    group, title = entry["process_group"]
    shapes = ", ".join(str(tuple(shape)) for shape in entry["input_sizes"] or entry["output_sizes"])
    dtypes = ", ".join(dict.fromkeys(entry["input_dtypes"] or entry["output_dtypes"]))
    return NcclCall(
        name=entry["profiling_name"].partition(":")[2],
        number=None if entry["is_p2p"] else entry["collective_seq_id"],
        group="" if title == "default_pg" else title if title not in ("", "undefined") else group,
        tensors=f"{shapes} {dtypes}".strip(),
        started=entry["state"] == _STARTED,
    )


def _dump() -> Any:
    return getattr(sys.modules.get("torch._C._distributed_c10d"), "_dump_nccl_trace_json", None)
