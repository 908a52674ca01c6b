"""A drawn use of what an optimizer has besides its step: it works, or raises, as the law ``surface`` states."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from everyrank.suites.arena import surface
from everyrank.suites.compare.comparison import check
from everyrank.suites.errors import Deviation


def use(
    part: str, ours: Any, reference: torch.optim.Optimizer, built: Mapping[str, Any], step: Callable[[], None]
) -> None:
    """Use one part of the subject. Any exception of the subject is a refusal; a wrong result is a deviation."""
    try:
        finish = _PARTS[part](ours, reference, built)
    except Deviation:
        raise
    except Exception:
        return
    if finish is not None:
        step()
        finish()


def _hooks(ours: Any, reference: torch.optim.Optimizer, built: Mapping[str, Any]) -> Callable[[], None]:
    calls = {"pre": 0, "post": 0}

    def counting(kind: str) -> Callable[..., None]:
        def count(*arguments: Any) -> None:
            calls[kind] += 1

        return count

    ours.register_step_pre_hook(counting("pre"))
    ours.register_step_post_hook(counting("post"))

    def finish() -> None:
        for kind, number in calls.items():
            check(number == 1, f"a step {kind}-hook was taken, and called {number} times in a step")

    return finish


def _defaults(ours: Any, reference: torch.optim.Optimizer, built: Mapping[str, Any]) -> None:
    surface.check_defaults(ours, {name: value for name, value in built.items() if not torch.is_tensor(value)})


def _repr(ours: Any, reference: torch.optim.Optimizer, built: Mapping[str, Any]) -> None:
    surface.check_repr(ours, {float(group["lr"]) for group in reference.param_groups})


def _copy(ours: Any, reference: torch.optim.Optimizer, built: Mapping[str, Any]) -> None:
    copy.deepcopy(ours).step()


_PARTS: Mapping[str, Callable[..., Callable[[], None] | None]] = {
    "hooks": _hooks,
    "defaults": _defaults,
    "repr": _repr,
    "copy": _copy,
}
