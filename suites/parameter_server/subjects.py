"""The subjects of ``parameter-server``: torch's example of one, and the exemplar."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed.rpc as rpc
from everyrank.fixtures.exemplars.parameter_server import BatchUpdateParameterServer
from everyrank.suites.engine.subject import Subject
from everyrank.suites.parameter_server import example

EXEMPLAR = Subject(
    "everyrank.BatchUpdateParameterServer",
    contract="parameter-server",
    build=BatchUpdateParameterServer,
    exemplar=True,
)
EXAMPLE = Subject(
    "torch.example.BatchUpdateParameterServer",
    contract="parameter-server",
    build=example.BatchUpdateParameterServer,
    known="example.toml",
    turn=0,
)


class _Nothing:
    """Takes everything and does nothing."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    @rpc.functions.async_execution  # type: ignore[untyped-decorator]
    def update_and_fetch(self, gradients: Any, trainer: int) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(None)
        return future


NOTHING = Subject("nothing", contract="parameter-server", build=_Nothing)
