"""Run small worlds, and see that each ends with the verdict that is true of it."""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from everyrank.doctor.answer import BAD, OK, Answer
from everyrank.errors import RankLost, WorldFailed, WorldTimeout

#: The size of the worlds.
RANKS = 4
#: After so many seconds, a world has missed its deadline.
_TIMEOUT = 60.0


def _adds() -> float:
    import torch
    import torch.distributed as dist

    mine = torch.tensor(float(dist.get_rank()))
    dist.all_reduce(mine)
    return mine.item()


def _dies() -> None:
    import torch.distributed as dist

    dist.barrier()
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def _leaves() -> None:
    import torch.distributed as dist

    if dist.get_rank() != 2:
        dist.barrier()


def _calls() -> bool:
    import everyrank
    import torch.distributed.rpc as torch_rpc

    rpc: Any = torch_rpc  # much of it has no types
    world = everyrank.current_world()
    options = rpc.TensorPipeRpcBackendOptions(init_method=world.init_method, rpc_timeout=_TIMEOUT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of what it does itself
        rpc.init_rpc(f"worker{world.rank}", rank=world.rank, world_size=world.size, rpc_backend_options=options)
    answer: int = rpc.rpc_sync(f"worker{(world.rank + 1) % world.size}", os.getpid)
    rpc.shutdown()
    return answer != os.getpid()


@dataclass(frozen=True)
class Trial:
    """A world, and how it must end."""

    name: str
    function: Callable[[], Any]
    error: type[WorldFailed] | None = None
    words: tuple[str, ...] = ()
    """What the verdict must say."""
    returned: list[Any] | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def run(self, launcher: str | None) -> Answer:
        import everyrank

        began = time.monotonic()
        try:
            values = everyrank.run(self.function, RANKS, launcher=launcher, timeout=_TIMEOUT, **self.options)
        except Exception as error:
            wrong = self._wrong_error(error)
        else:
            wrong = "" if values == self.returned else f"it ended well, and its ranks returned {values}"
        if wrong:
            return Answer(self.name, BAD, wrong)
        return Answer(self.name, OK, f"{time.monotonic() - began:.1f} s")

    def _wrong_error(self, error: Exception) -> str:
        """Return what is wrong about how the world ended; "" if that is what it had to do."""
        if self.error and isinstance(error, self.error) and all(word in str(error) for word in self.words):
            return ""
        return f"it ended with {type(error).__name__}: {error}"


_TOTAL = float(sum(range(RANKS)))
TRIALS = (
    Trial("a sum over all ranks", _adds, returned=[_TOTAL] * RANKS),
    Trial("a rank that is killed", _dies, RankLost, ("rank 1", "SIGKILL")),
    Trial("a rank that leaves early", _leaves, WorldTimeout, ("rank 2", "deadlocked")),
)
OVER_RPC = Trial("a call over RPC", _calls, returned=[True] * RANKS, options={"group": False})


def run(launcher: str | None, with_rpc: bool) -> list[Answer]:
    return [trial.run(launcher) for trial in (*TRIALS, *([OVER_RPC] if with_rpc else []))]
