"""The law ``surface``, shared by contracts: the features of an optimizer besides its step work, or refuse.

Each part uses one feature of the subject and then of the reference. Any error of the subject is a refusal, and the
reference then does without the feature too. The run file lists the refusals.
"""

from __future__ import annotations

import copy
import functools
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from everyrank.model.counts import count
from everyrank.rank.context import notes
from everyrank.suites.arena.subject_errors import in_a_line
from everyrank.suites.compare.comparison import check
from everyrank.suites.errors import BrokenAdapter, Deviation

#: The optimizer on which all parts are used: its momentum shows a state that was changed by something else.
OPTIMIZER = torch.optim.SGD
ARGUMENTS: dict[str, Any] = {"lr": 0.1, "momentum": 0.9}

STEPS = 3


@dataclass
class Pair:
    """The subject and the reference, which take the same steps, and how to step a copy of the subject alone."""

    ours: Any
    reference: torch.optim.Optimizer
    step_copy: Callable[[Any], None]
    built: Mapping[str, Any] = field(default_factory=lambda: ARGUMENTS)
    """The arguments with which both were built."""

    @property
    def rate(self) -> float:
        """The current learning rate."""
        return float(self.reference.param_groups[0]["lr"])


#: A generator that uses its feature before the first step, and again after each step.
Part = Callable[[Pair], Iterator[None]]


def scheduler(pair: Pair) -> Iterator[None]:
    """Check that a scheduler halves the learning rate after each step."""
    schedulers = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) for optimizer in (pair.ours, pair.reference)]
    while True:
        yield
        for schedule in schedulers:
            schedule.step()


def groups(pair: Pair) -> Iterator[None]:
    """Check that a learning rate set in param_groups is used from the next step on."""
    while True:
        rates = [float(group["lr"]) for group in pair.ours.param_groups]
        check(set(rates) == {pair.rate}, f"the learning rates in param_groups are {rates}, where {pair.rate} is due")
        rate = pair.rate * 0.75
        for group in [*pair.ours.param_groups, *pair.reference.param_groups]:
            group["lr"] = rate
        yield


def pre_hook(pair: Pair) -> Iterator[None]:
    """Check that a hook is called before each step."""
    yield from _hook(pair.ours.register_step_pre_hook, pair.reference.register_step_pre_hook, "pre")


def post_hook(pair: Pair) -> Iterator[None]:
    """Check that a hook is called after each step."""
    yield from _hook(pair.ours.register_step_post_hook, pair.reference.register_step_post_hook, "post")


def _hook(ours: Callable[[Callable[..., None]], Any], reference: Callable[..., Any], kind: str) -> Iterator[None]:
    """Check that a hook is called once in a step, or as often as torch.optim calls it in this process.

    torch wraps the ``step`` of a class when it first builds an optimizer of exactly that class. A subclass whose
    ``step`` calls that of its base calls its hooks twice from the moment on at which its base was built, too.
    """
    calls, wanted = [0], [0]
    for register, called in ((ours, calls), (reference, wanted)):
        register(functools.partial(_count, called))
    for steps in range(STEPS + 1):
        check(
            calls[0] in (steps, wanted[0]),
            f"a step {kind}-hook was taken, and called {count(calls[0], 'time')} in {count(steps, 'step')}",
        )
        yield


def _count(called: list[int], *arguments: Any) -> None:
    called[0] += 1


def defaults(pair: Pair) -> Iterator[None]:
    """Check that the defaults are the arguments with which the optimizer was built."""
    check_defaults(pair.ours, pair.built)
    yield


def deepcopy(pair: Pair) -> Iterator[None]:
    """Check that a copy has its own parameters and state: its step does not change the subject's."""
    yield
    pair.step_copy(copy.deepcopy(pair.ours))
    yield


def described(pair: Pair) -> Iterator[None]:
    """Check that a learning rate in repr() is the current one."""
    while True:
        check_repr(pair.ours, {float(group["lr"]) for group in pair.reference.param_groups})
        yield


def check_defaults(ours: Any, arguments: Mapping[str, Any]) -> None:
    """Check that the defaults are the arguments with which the subject was built."""
    for name, value in arguments.items():
        stated = ours.defaults[name]
        check(stated == value, f"defaults says that {name} is {stated}, and it was built with {value}")


def check_repr(ours: Any, rates: set[float]) -> None:
    """Check that every learning rate in repr() is one of the current ones."""
    stated = [float(number) for number in re.findall(r"\blr[:=] ?([\d.e-]+)", repr(ours))]
    current = ", ".join(map(str, sorted(rates)))
    check(set(stated) <= rates, f"repr() states the learning rate {stated}, where {current} counts")


PARTS: Mapping[str, Part] = {
    "scheduler": scheduler,
    "param-groups": groups,
    "pre-hook": pre_hook,
    "post-hook": post_hook,
    "defaults": defaults,
    "deepcopy": deepcopy,
    "repr": described,
}

#: What the points use: one part, or all parts on one optimizer.
LABELS = (*PARTS, "all")


def use(
    name: str,
    pair: Pair,
    step: Callable[[int], None],
    more: Mapping[str, Callable[[Any], Iterator[None]]] = MappingProxyType({}),
) -> dict[str, str]:
    """Use this part while ``step`` steps the subject and the reference; return what was refused, and the errors.

    ``all`` stands for all parts on one optimizer. ``more``: parts of one contract, each of which is used alone.
    """
    makers = PARTS if name == "all" else {name: {**PARTS, **more}[name]}
    parts = {name: part(pair) for name, part in makers.items()}
    refused: dict[str, str] = {}
    # Noted also if it stays empty: a rank that refuses nothing differs from one that does not use the subject.
    notes()["refused"] = refused
    for number in range(STEPS + 1):
        if number:
            step(number)
        for name, part in list(parts.items()):
            if refusal := use_once(part):
                refused[name] = refusal
                del parts[name]
    return refused


def use_once(part: Iterator[None]) -> str:
    """Use the part once more; return the error, on one line, by which the subject refused it, or nothing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a scheduler warns that it cannot see the step
            next(part, None)
    except (Deviation, BrokenAdapter):
        raise
    except Exception as error:
        return in_a_line(error)
    return ""
