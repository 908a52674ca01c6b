"""What NCCL's flight recorder returns on a rank with a GPU, in the format of torch 2.13 and 2.14 (version 2.10)."""

from __future__ import annotations

import json
from typing import Any


def entry(record: int, name: str = "all_reduce", **changes: Any) -> dict[str, Any]:
    """One call that is not over, as torch writes it, the ``record``th of the default group from 0 on."""
    return {
        "collective_seq_id": record + 1, "input_dtypes": ["Float"], "input_sizes": [[3]], "is_p2p": False,
        "op_id": record + 1, "output_dtypes": ["Float"], "output_sizes": [[3]], "p2p_seq_id": 0, "pg_id": 0,
        "process_group": ["0", "default_pg"], "profiling_name": f"nccl:{name}", "record_id": record,
        "retired": False, "state": "scheduled", "thread_id": "140074465901440", "thread_name": "python",
        "time_created_ns": 1000 + record, "time_discovered_completed_ns": 0, "time_discovered_started_ns": 0,
        "timeout_ms": 600000, **changes,
    }  # fmt: skip


def dumped(*entries: dict[str, Any]) -> bytes:
    """The bytes that ``_dump_nccl_trace_json`` returns. Without entries there is no list of them."""
    return json.dumps(
        {
            "comm_lib_version": "2.28.9", "nccl_comm_state": {}, "pg_config": {}, "pg_status": {}, "version": "2.10",
            **({"entries": list(entries)} if entries else {}),
        }
    ).encode()  # fmt: skip
