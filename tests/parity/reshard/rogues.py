"""Ways to save and to load with one mistake, and how the report of each begins."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

from tests.parity.reshard import ways


@dataclass(frozen=True)
class Rogue:
    way: ways.Checkpoint
    begins: str
    """A pattern of the report's first line."""
    layouts: list[Any] = field(default_factory=lambda: [(3, ways.sharded), (2, ways.sharded)])
    optimizer: Callable[[Any], Any] = ways.adamw


class SavesWeightsAlone(ways.Checkpoint):
    def put(self, model: Any, optimizer: Any, state: dict[str, Any]) -> None:
        super().put(model, optimizer, state)
        optimizer.state.clear()


class ForgetsSteps(ways.Checkpoint):
    """As a checkpoint that keeps tensors of more than an element alone."""

    def put(self, model: Any, optimizer: Any, state: dict[str, Any]) -> None:
        super().put(model, optimizer, state)
        for each in optimizer.state.values():
            each["step"].zero_()


class CountsAStepTwice(ways.Checkpoint):
    def put(self, model: Any, optimizer: Any, state: dict[str, Any]) -> None:
        super().put(model, optimizer, state)
        for each in optimizer.state.values():
            each["step"] += 1


class SavesMomentsByRank(ways.Checkpoint):
    """Each rank writes what it holds, and reads the file of its own number: which has other rows then."""

    def save(self, model: Any, optimizer: Any, path: str) -> None:
        super().save(model, optimizer, path)
        mine = [each["exp_avg"].to_local() for each in optimizer.state.values()]
        torch.save(mine, os.path.join(path, f"moments-{dist.get_rank()}.pt"))

    def load(self, model: Any, optimizer: Any, path: str) -> None:
        super().load(model, optimizer, path)
        kept = torch.load(os.path.join(path, f"moments-{dist.get_rank()}.pt"))
        for each, part in zip(optimizer.state.values(), kept, strict=True):
            mine = each["exp_avg"].to_local()
            size = min(len(mine), len(part))
            mine.zero_()
            mine[:size] = part[:size]


class KeepsPadding(ways.Whole):
    """Shards are padded to equal sizes, and put together with their padding: rows behind the first shard move."""

    def saved(self, state: dict[str, Any]) -> dict[str, Any]:
        weight = state["model"]["last.weight"]
        state["model"]["last.weight"] = torch.cat([weight[:3], torch.zeros_like(weight[:1]), weight[3:]])[:5]
        return state


class LosesTheRate(ways.WithScheduler):
    def put_scheduler(self, scheduler: Any, state: dict[str, Any]) -> None:
        for group in scheduler.optimizer.param_groups:
            group["lr"] = 1e-2


class LoadsOneRankOfEach(ways.Whole):
    """The second rank keeps a weight as it was built."""

    def load(self, model: Any, optimizer: Any, path: str) -> None:
        before = model.up.bias.to_local().clone()
        super().load(model, optimizer, path)
        if dist.get_rank() == 1:
            with torch.no_grad():
                model.up.bias.to_local().copy_(before)


class SavesTheFirstStage(ways.Whole):
    """The file that rank 0 writes has its own stage alone, and who loads it asks for no more."""

    def load(self, model: Any, optimizer: Any, path: str) -> None:
        options = StateDictOptions(full_state_dict=True, strict=False)
        set_model_state_dict(model, torch.load(os.path.join(path, "whole.pt"))["model"], options=options)


class ExchangesMoments(ways.Checkpoint):
    def put(self, model: Any, optimizer: Any, state: dict[str, Any]) -> None:
        super().put(model, optimizer, state)
        for each in optimizer.state.values():
            each["exp_avg"], each["exp_avg_sq"] = each["exp_avg_sq"], each["exp_avg"]


class LoadsTheCheckpointBefore(ways.Checkpoint):
    """Of three layouts the last loads what the first has saved."""

    def load(self, model: Any, optimizer: Any, path: str) -> None:
        super().load(model, optimizer, path.replace("checkpoint-1", "checkpoint-0"))


ROGUES: Mapping[str, Rogue] = {
    "saves-weights-alone": Rogue(
        SavesWeightsAlone(), r"reshard: `exp_avg` of `up\.weight` is missing on ranks 0 and 1 "
    ),
    "forgets-steps": Rogue(
        ForgetsSteps(), r"reshard: `step` of `up\.weight` is 0 instead of 2 on ranks 0 and 1 \(after load"
    ),
    "counts-a-step-twice": Rogue(
        CountsAStepTwice(), r"reshard: `step` of `up\.weight` is 3 instead of 2 on ranks 0 and"
    ),
    "saves-moments-by-rank": Rogue(SavesMomentsByRank(), r"reshard: `exp_avg` of `up\.weight` has "),
    "keeps-padding": Rogue(
        KeepsPadding(), r"reshard: `last\.weight` has 0 instead of .* at \[3, 0\] on rank 1 \(after "
    ),
    "loses-the-rate": Rogue(
        LosesTheRate(),
        r"reshard: the learning rate is 0\.01 instead of 0\.0025 on ranks 0 and 1 ",
        optimizer=ways.scheduled,
    ),
    "loads-one-rank": Rogue(
        LoadsOneRankOfEach(), r"reshard: `up\.bias` is as it was before load= on rank 1 \(after load= in layout 2"
    ),
    "saves-the-first-stage": Rogue(
        SavesTheFirstStage(),
        r"reshard: `last\.weight` is as it was before load= on ranks 0 and 1 \(after load= in layout 2, of 2 ranks\)",
        layouts=[(2, ways.Stages, ways.step_of_stages), (2, ways.sharded)],
    ),
    "exchanges-moments": Rogue(ExchangesMoments(), r"reshard: `exp_avg` of `up\.weight` has "),
    "loads-the-checkpoint-before": Rogue(
        LoadsTheCheckpointBefore(),
        r"reshard: `up\.weight` is as it was before step 3 on ranks 0 and 1 \(after load= in layout 3, of 2 ranks\)",
        layouts=[(3, ways.sharded), (2, ways.sharded), (2, ways.tensor_parallel)],
    ),
}
