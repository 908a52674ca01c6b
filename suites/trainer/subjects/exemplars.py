"""The exemplars of ``trainer``, and the subject that does nothing."""

from __future__ import annotations

from typing import Any

import torch
from everyrank.fixtures.exemplars.trainer import DataParallel, Sharded
from everyrank.suites.arena.groups import NAMES_RANKS
from everyrank.suites.engine.subject import Subject
from torch import nn

_DECLARES = frozenset({NAMES_RANKS})

DATA_PARALLEL = Subject(
    "everyrank.DataParallel", contract="trainer", build=DataParallel, declares=_DECLARES, exemplar=True
)

SHARDED = Subject("everyrank.Sharded", contract="trainer", build=Sharded, declares=_DECLARES, exemplar=True)


class Nothing:
    """Accepts everything and trains nothing."""

    def __init__(self, model: nn.Module, *args: Any, **kwargs: Any) -> None:
        self.model = model
        self.optimizer = torch.optim.SGD([torch.zeros(1)])
        self.param_groups: list[dict[str, Any]] = []

    def step(self, *batches: Any, **options: Any) -> torch.Tensor:
        return torch.zeros((), dtype=torch.float64)

    def parameters(self) -> dict[str, torch.Tensor]:
        return dict(self.model.named_parameters())

    def add_param_group(self, group: Any) -> None:
        pass

    def loader(self, batches: Any) -> Any:
        return iter(())

    def state_dict(self) -> dict[str, Any]:
        return {"model": {}}

    def load_state_dict(self, state: Any) -> None:
        pass


NOTHING = Subject("nothing", contract="trainer", build=Nothing)
