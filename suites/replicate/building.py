"""How a subject is built on a model: which of its modules are replicated, and with which options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.errors import NotApplicable
from everyrank.suites.replicate.arena import Arena
from torch import nn

#: Options that a subject may refuse by a TypeError that names them.
_OFFERED = ("bucket_cap_mb", "gradient_as_bucket_view", "static_graph", "find_unused_parameters")


@dataclass(frozen=True)
class Build:
    """What a subject is asked for."""

    replicated: tuple[str, ...] = ("",)
    """The modules that are replicated, in this order; the whole one has no name."""
    alone: str = ""
    """The module that is ignored, if there is one."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """If the subject refuses one of these, nothing can be asked of it."""
    offers: Mapping[str, Any] = field(default_factory=dict)
    """If it refuses one of these, it builds without."""

    def on(self, arena: Arena, model: nn.Module) -> tuple[nn.Module, list[nn.Module]]:
        """Let the subject build; return the whole, and what was built."""
        built = []
        given = {"ignored_modules": [model.get_submodule(self.alone)]} if self.alone else {}
        for name in self.replicated:
            built.append(self._build(arena, model.get_submodule(name), **given))
            if name:
                model.add_module(name, built[-1])
            else:
                model = built[-1]
        return model, built

    def _build(self, arena: Arena, module: nn.Module, **given: Any) -> nn.Module:
        offers = dict(self.offers)
        while True:
            asked = {**given, **self.options, **offers}
            with subject_acts():
                try:
                    return arena.build(module, **asked)
                except TypeError as error:
                    refused = [name for name in _OFFERED if name in asked and name in str(error)]
                    if not refused:
                        raise
                    refusal = error
            if refused[0] not in offers:
                raise NotApplicable(f"the subject does not take {', '.join(self.options)}") from refusal
            del offers[refused[0]]

    def keeps(self, name: str) -> bool:
        """Return whether each rank keeps the parameter of this name to itself."""
        inside = any(not path or name.startswith(f"{path}.") for path in self.replicated)
        return not inside or (bool(self.alone) and name.startswith(f"{self.alone}."))
