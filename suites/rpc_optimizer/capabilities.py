"""What an RPC optimizer may lack besides the features that the law ``surface`` lets it refuse."""

from __future__ import annotations

from everyrank.suites.engine.capability import REFUSALS, Capability

_REFUSALS = (*REFUSALS, RuntimeError, ValueError)

CAPABILITIES = (
    Capability(
        "sparse",
        ("parity.sparse[*]",),
        text="gradients may be sparse",
        words=("sparse",),
        refusals=_REFUSALS,
    ),
    Capability(
        "complex",
        ("parity.dtype[*-complex-*]",),
        text="parameters may be complex",
        words=("complex",),
        refusals=_REFUSALS,
    ),
    Capability(
        "bf16",
        ("parity.dtype[*-bf16-*]",),
        text="parameters may be of the dtype bfloat16",
        words=("bfloat16", "bf16"),
        refusals=_REFUSALS,
    ),
)
