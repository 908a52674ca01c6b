"""What a sharded optimizer may lack: all but ``step`` of shards that were cut before."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from everyrank.suites.engine.capability import REFUSALS, Capability
from everyrank.suites.sharded_optimizer.arena import Arena


def _tool(name: str) -> Callable[[Arena], object]:
    return lambda arena: arena.tool(name)


def _method(name: str) -> Callable[[Arena], object]:
    return lambda arena: getattr(arena.plain_optimizer, name)


def _closures(arena: Arena) -> None:
    inspect.signature(arena.plain_optimizer.step).bind(lambda: None)


#: The cases that cut a module with the subject's own tools, and ask for its parameters.
_MODULES = ("names[*]", "parity.shard-parameter[*]", "frozen[*]", "tied[model-*]")

CAPABILITIES = (
    Capability(
        "shard_parameter",
        (*_MODULES, "large-world[*]"),
        _tool("shard_parameter"),
        text="build.shard_parameter(module, name, spec) cuts a parameter of a module in place",
    ),
    Capability(
        "named_parameters",
        _MODULES,
        _tool("named_parameters"),
        text="build.named_parameters(module) yields names and parameters, whole or sharded",
    ),
    Capability(
        "zero_grad",
        ("grad.zero[*]",),
        _method("zero_grad"),
        text="zero_grad(set_to_none=True) clears gradients",
    ),
    Capability(
        "closures",
        (
            "closure[*]",
            "parity.whole-tensor[LBFGS-*]",
            "state.round-trip[LBFGS-*]",
            *(f"errors.rank[{fault}-*]" for fault in ("closure", "unpicklable", "unprintable")),
        ),
        _closures,
        text="step(closure) evaluates a closure, and returns its loss",
    ),
    Capability(
        "clip_grad_norm_",
        ("clip[*]",),
        _method("clip_grad_norm_"),
        text="clip_grad_norm_(max_norm, norm_type=2.0) clips the norm of the whole gradient",
    ),
    Capability(
        "state_dict",
        ("state.*",),
        _method("state_dict"),
        text="state_dict() returns the state, of any form",
    ),
    Capability(
        "load_state_dict",
        ("state.*",),
        _method("load_state_dict"),
        part_of="state_dict",
        text="load_state_dict(state) goes on from a state",
    ),
    Capability(
        "add_param_group",
        ("state.groups[*]",),
        _method("add_param_group"),
        text="add_param_group(group) takes a further group, by the names of its parameters",
    ),
    Capability(
        "own-classes",
        (
            "parity.subclass[*]",
            "parity.whole-tensor[*-subclass-*]",
            "errors.rank[step-*]",
            "errors.rank[after-step-*]",
        ),
        text="an optimizer class that torch does not have is taken, such as a subclass of SGD",
    ),
    Capability(
        "whole-tensor",
        (
            "parity.whole-tensor[*]",
            *(f"closure[{name}-*]" for name in ("Adafactor", "LBFGS")),
            *(f"state.*[{name}-*]" for name in ("Adafactor", "LBFGS", "Muon")),
        ),
        text="optimizers that look at the whole tensor are taken (Adafactor, LBFGS, Muon)",
    ),
    Capability(
        "sparse",
        ("parity.embeddings[*]", "parity.shard[*-repeated-rows-*]", "*[SparseAdam-*]", "*[*-SparseAdam-*]"),
        text="gradients may be sparse",
        words=("sparse",),
        refusals=(*REFUSALS, RuntimeError, ValueError),
    ),
    Capability(
        "shared-errors",
        ("errors.rank[*]",),
        text="an error on one rank is raised on all ranks, with the number of that rank",
        seen="heard nothing of the error on rank",
    ),
)
