"""See that what one process runs alone calls no collective: the other ranks would not come to it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from everyrank.parity.errors import Unusable
from everyrank.parity.values.lines import line_now, runs_a_module
from torch.utils._python_dispatch import TorchDispatchMode

_NAMESPACES = frozenset({"c10d", "_c10d_functional", "_c10d_functional_autograd"})


class _Refuse(TorchDispatchMode):
    """Raise at a collective, before it waits for other ranks."""

    def __init__(self, caller: str, instead: str) -> None:
        super().__init__()
        self._caller, self._instead = caller, instead

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func.namespace in _NAMESPACES and _ranks_of(args) != 1:
            raise self.refusal(f"calls a collective, {func.overloadpacket.__name__.rstrip('_')}")
        return func(*args, **(kwargs or {}))

    def refusal(self, does: str, instead: str = "") -> Unusable:
        """Return what is raised at something that waits for other ranks."""
        caller, instead = self._caller, instead or self._instead
        if runs_a_module():
            caller = "the plain model"
            instead = (
                "switch it on in parallelize, or, if there is no model without it, pass "
                'reference="one rank", which builds and trains it in a world of one.'
            )
        line = line_now()
        return Unusable(
            f"{caller} {does}{line and f', at {line}'}: the plain model is "
            f"trained by one process alone, and would wait there for the others. Instead, {instead}"
        )


def _ranks_of(arguments: tuple[Any, ...]) -> int:
    """Return how many ranks the group has that an operator is called with; 1 if it is called with none."""
    for argument in arguments:
        if isinstance(argument, torch.ScriptObject) and "ProcessGroup" in str(argument._type()):
            return int(dist.ProcessGroup.unbox(argument).size())
        if isinstance(argument, str) and argument in {*dist.distributed_c10d._world.pg_names.values()}:
            return int(dist.distributed_c10d._resolve_process_group(argument).size())  # type: ignore[arg-type]
    return 1


@contextlib.contextmanager
def without_collectives(caller: str, instead: str) -> Iterator[None]:
    """Raise Unusable if the code inside calls a collective; ``instead`` says how to write it."""
    refusing = _Refuse(caller, instead)
    make = dist.distributed_c10d._new_group_with_tag

    def watched(ranks: Any = None, *arguments: Any, **named: Any) -> Any:
        if ranks is not None and len(ranks) == 1:
            return make(ranks, *arguments, **named)
        raise refusing.refusal("calls new_group", "make the group once, before parity or in parallelize.")

    with refusing, patch.object(dist.distributed_c10d, "_new_group_with_tag", watched):
        yield
