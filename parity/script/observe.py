"""`everyrank.parity.observe`: record a training that somebody else has started, in each of its processes."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from everyrank.parity.errors import Unusable
from everyrank.parity.script import samplers
from everyrank.parity.script.kept import Kept
from everyrank.parity.script.record import Recorder
from everyrank.parity.script.records import Compared, compare, ranks_of_record
from everyrank.parity.script.report import nothing
from everyrank.parity.values.lines import line_of_caller
from everyrank.resources.holders import is_gone
from torch import nn
from torch.nn.utils import clip_grad

#: The rounding of TF32, in which GPUs may compute.
_TF32 = 2.0**-10

#: A folder within a record, until its rank is known: the process follows.
_OF_PROCESS = f".process-{socket.gethostname()}-"

_running: list[Observation] = []


class Observation:
    """A record of a training, in a folder that all of its ranks have."""

    __module__ = "everyrank.parity"

    def __init__(self, folder: str | Path, steps: int, moved: bool) -> None:
        self.folder = Path(folder)
        self._steps, self._moved = steps, moved
        self._own = self.folder / f"{_OF_PROCESS}{os.getpid()}"
        self._recorder: _Observer | None = None
        self._end_watch: Callable[[], None] | None = None

    def compare(self, reference: str | Path | Observation, moved: str | Path | Observation | None = None) -> Compared:
        """Compare this record with one of the reference, usually one rank's.

        ``moved`` is another record of the reference, of ``observe(..., moved=True)``: it shows how far rounding goes.
        """
        return compare(_folder(reference), self.folder, moved=None if moved is None else _folder(moved))

    def __enter__(self) -> Observation:
        if _running:
            raise Unusable(
                f"observe({str(self.folder)!r}) begins inside of observe({str(_running[0].folder)!r}): a process "
                "records one training at a time"
            )
        if self.folder.exists() and not self.folder.is_dir():
            raise Unusable(f"{self.folder} is a file: name a folder for the record")
        self._own.mkdir(parents=True, exist_ok=True)
        _remove_killed(self.folder)
        self._recorder = _Observer(Kept(self._own), self._steps, self._moved, _script())
        self._recorder.watch()
        self._end_watch = samplers.watch(self._recorder.remarks.find)
        _running.append(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._recorder is not None
        assert self._end_watch is not None
        _running.clear()
        self._end_watch()
        recorder = self._recorder
        recorder.unwatch()
        facts = recorder.close()
        if kind is not None or not facts.rounds:
            shutil.rmtree(self._own, ignore_errors=True)
        if kind is not None:
            return
        if not facts.rounds:
            raise Unusable(f"observe({str(self.folder)!r}) has nothing to record: {_nothing(facts)}")
        for rank in ranks_of_record(self.folder):
            if rank == facts.rank or rank >= facts.size:
                shutil.rmtree(self.folder / f"rank-{rank}", ignore_errors=True)
        self._own.rename(self.folder / f"rank-{facts.rank}")


def observe(folder: str | Path, *, steps: int = 3, moved: bool = False) -> Observation:
    """Record the first optimizer steps inside of a `with` block, so that two trainings can be compared.

    Each process of a training has the block around its own training, and the same folder. Nothing else of the
    training changes, and it goes on when enough is recorded.

    Args:
        folder: where the record is kept; an earlier one is replaced.
        steps: how many optimizer steps are recorded.
        moved: move the weights by a rounding before the first step. Such a record of the reference, beside its own,
            shows how far rounding alone lets a training part.
    """
    if steps < 1:
        raise Unusable(f"observe(steps={steps}) compares nothing: write steps=1 or more")
    return Observation(folder, steps, moved)


def _remove_killed(folder: Path) -> None:
    """Remove what processes of this host have left that were killed before their end."""
    for left in folder.glob(f"{_OF_PROCESS}*"):
        pid = left.name.removeprefix(_OF_PROCESS)
        if pid.isdecimal() and is_gone(int(pid)):
            shutil.rmtree(left, ignore_errors=True)


def _folder(record: str | Path | Observation) -> Path:
    return record.folder if isinstance(record, Observation) else Path(record)


def _script() -> str:
    """Return the name of the file that observes; empty in a notebook."""
    path = line_of_caller().rpartition(":")[0]
    return "" if "ipykernel" in path or not path.endswith(".py") else os.path.basename(path)


def _nothing(facts: Any) -> str:
    return nothing([facts]).replace("the script", "the block")


class _Observer(Recorder):
    """Records a training that goes on, on any device."""

    def __init__(self, kept: Kept, steps: int, moved: bool, script: str) -> None:
        super().__init__(kept, steps, moved)
        self._facts.script, self._facts.moved, self._facts.began = script, moved, time.time()
        self._facts.rank, self._facts.size = 0, 1
        self._is_over = False
        self._replaced: list[tuple[Any, str, Any]] = []

    def watch(self) -> None:
        for owner, name in (
            (torch.autograd, "backward"),
            (torch.Tensor, "backward"),
            (torch.optim.lr_scheduler.ReduceLROnPlateau, "step"),
            (clip_grad, "_clip_grads_with_norm_"),
        ):
            self._replaced.append((owner, name, getattr(owner, name)))
        super().watch()

    def unwatch(self) -> None:
        for handle in self._handles:
            handle.remove()
        for owner, name, before in self._replaced:
            setattr(owner, name, before)

    def close(self) -> Any:
        """Write what is known at the end, and return it."""
        self._facts.ended = time.time()
        self.remarks.write()
        return self._facts

    def _watch_clips(self) -> None:
        """Watch what every clip by norm calls: who observes may have imported the function itself before."""
        clip = clip_grad._clip_grads_with_norm_

        def watched(parameters: Any, most: Any, norm: torch.Tensor, *given: Any, **named: Any) -> None:
            parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
            if not self._is_over:
                self._moments.keep_gradients("gradient at the clip", self._roots.named(parameters))
                self._moments.keep("norm", {"": norm})
            clip(parameters, most, norm, *given, **named)

        clip_grad._clip_grads_with_norm_ = watched  # type: ignore[assignment]

    def _enter(self, module: nn.Module, given: Any) -> None:
        if self._is_over:
            self.unwatch()  # an optimizer's hooks cannot go while they run
            return
        if torch.cuda.is_initialized() and not self._facts.eps:
            self._facts.eps = _eps_of_gpus()
        super()._enter(module, given)

    def _leave(self, module: nn.Module, *given: Any) -> None:
        if not self._is_over:
            super()._leave(module, *given)

    def _backward(self, backward: Callable[..., Any], *given: Any, **named: Any) -> Any:
        return backward(*given, **named) if self._is_over else super()._backward(backward, *given, **named)

    def _end_round(self, whole: int) -> None:
        self._facts.rank, self._facts.size = _seat()
        super()._end_round(whole)

    def _end(self) -> None:
        self._is_over = self._facts.done = True


def _seat() -> tuple[int, int]:
    """Return the rank of this process and the size of its world."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _eps_of_gpus() -> float:
    if torch.is_autocast_enabled("cuda"):
        return torch.finfo(torch.get_autocast_dtype("cuda")).eps
    return _TF32 if torch.backends.cuda.matmul.allow_tf32 or torch.backends.cudnn.allow_tf32 else 0.0
