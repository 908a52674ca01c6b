"""What a parameter server may lack: options of ``build``, and sparse or complex gradients."""

from __future__ import annotations

from everyrank.suites.engine.capability import REFUSALS, Capability

_REFUSALS = (*REFUSALS, RuntimeError, ValueError)

CAPABILITIES = (
    Capability(
        "timeout",
        ("errors.dead-trainer[*]",),
        text="build takes timeout, the seconds that a round may stay open",
    ),
    Capability(
        "non_finite",
        tuple(f"errors.gradient[{value}-*]" for value in ("nan", "inf")),
        text="build takes non_finite, whether gradients may be infinite or undefined",
    ),
    Capability(
        "sparse",
        ("parity.round*[*sparse*]", "parity.round*[SparseAdam-*]"),
        text="gradients may be sparse",
        words=("sparse",),
        refusals=_REFUSALS,
    ),
    Capability(
        "complex",
        ("parity.round*[*-complex-*]",),
        text="parameters may be complex",
        words=("complex",),
        refusals=_REFUSALS,
    ),
)
