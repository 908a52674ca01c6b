"""What a trainer may lack: all but ``step`` of a batch and ``parameters``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from everyrank.suites.compare.reference import Plan
from everyrank.suites.engine.capability import REFUSALS, Capability
from everyrank.suites.trainer.arena import Arena
from everyrank.suites.trainer.batches import Microbatch


def _attribute(name: str) -> Callable[[Arena], object]:
    return lambda arena: getattr(arena.plain_trainer, name)


def _accepts(*batches: Any, **options: Any) -> Callable[[Arena], object]:
    """Return a check of the signature of ``step``: whether it then keeps the law is not asked here."""

    def check(arena: Arena) -> None:
        bound = inspect.signature(arena.plain_trainer.step).bind(*batches, **options)
        if "max_norm" in bound.arguments and not options:
            raise TypeError("the second batch is taken for max_norm")

    return check


def _groups(arena: Arena) -> None:
    model = arena.plain_model()
    names = [name for name, _ in model.named_parameters()]
    arena.subject.build(model, torch.optim.SGD, groups=[{"params": names, "lr": 0.1}])


class NeedsClosure(torch.optim.SGD):
    """An optimizer whose step needs a closure, which it calls once: so all ranks communicate alike."""

    def step(self, closure: Any) -> Any:  # type: ignore[override]
        return super().step(closure)


def _closures(arena: Arena) -> None:
    trainer = arena.subject.build(arena.plain_model(), NeedsClosure)
    trainer.step(arena.plain_batch(trainer))


def _sparse(arena: Arena) -> None:
    plan = Plan(arena.size, model="sparse-sum", variant="lr")
    trainer = arena.subject.build(plan.build().to(arena.device), torch.optim.SGD, lr=0.1)
    index, _ = getattr(trainer, "part", (arena.rank, arena.size))
    trainer.step(Microbatch(*plan.batch(index, 1)).to(arena.device))


_SAVED = ("alias[after-load-*]", "alias[scheduler-after-load-*]", "alias[scheduler-resumed-*]", "alias[resumed-*]")
_LOADED = (*_SAVED, *(f"state.{law}[*]" for law in ("round-trip", "reshard", "strict", "in-order", "resume")))

CAPABILITIES = (
    Capability(
        "accumulation",
        (
            "accumulate[*]",
            "clip[accumulated-*]",
            "errors.everywhere[second-*]",
            "errors.everywhere[microbatches-*]",
            "errors.everywhere[twice-*]",
            "errors.everywhere[some-*]",
        ),
        _accepts("first", "second"),
        text="step takes several microbatches, as step(first, second)",
    ),
    Capability(
        "clipping",
        ("clip[*]", "non-finite[inf-clipped-*]"),
        _accepts("batch", max_norm=1.0),
        text="step(batch, max_norm=0.1) clips the norm of the whole gradient",
    ),
    Capability(
        "closures",
        ("parity.closure[*]",),
        _closures,
        text="an optimizer gets a closure from step, as LBFGS needs it",
    ),
    Capability(
        "groups",
        ("parity.groups[*]", "parity.sparse[*-groups-*]", "state.round-trip[groups-*]", "state.round-trip[added-*]"),
        _groups,
        text="build takes groups=[{'params': names, 'lr': 0.1}, ...]",
    ),
    Capability(
        "add_param_group",
        ("parity.groups[added-*]", "state.round-trip[added-*]"),
        _attribute("add_param_group"),
        part_of="groups",
        text="add_param_group(group) takes a further group",
    ),
    Capability(
        "optimizer",
        ("parity.schedule[*]", "alias[scheduler-*]", "alias[resumed-*]", "hooks[rate-*]"),
        _attribute("optimizer"),
        text="a scheduler of torch can be attached to the attribute optimizer",
    ),
    Capability(
        "param_groups",
        (
            "alias[at-once-*]",
            "alias[between-*]",
            "alias[after-load-*]",
            "alias[filled-*]",
            "state.round-trip[rate-*]",
        ),
        _attribute("param_groups"),
        text="an option that is set in param_groups counts from the next step on",
    ),
    Capability(
        "state_dict",
        ("state.*", *_SAVED),
        _attribute("state_dict"),
        text="state_dict() returns the state of the whole training",
    ),
    Capability(
        "load_state_dict",
        _LOADED,
        _attribute("load_state_dict"),
        part_of="state_dict",
        text="load_state_dict(state) goes on from a state",
    ),
    # Most of what torch does with dense tensors alone refuses others with a RuntimeError.
    Capability(
        "sparse",
        ("parity.sparse[*]", "accumulate[sparse-*]"),
        _sparse,
        text="gradients may be sparse",
        words=("sparse",),
        refusals=(*REFUSALS, RuntimeError),
        unless_stated=True,
    ),
    Capability(
        "owns",
        ("large-world[*]",),
        _attribute("owns"),
        text="owns() returns the boxes of each parameter that this rank owns",
    ),
)
