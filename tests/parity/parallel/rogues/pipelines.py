"""Rogues of pipelines."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining import PipelineStage

from tests.parity.parallel.rogue import Rogues
from tests.parity.parallel.subject import Batch
from tests.parity.parallel.subjects.pipeline import Pipeline, PipelineClipped, PipelineTied
from tests.parity.parallel.subjects.schedules import TorchPipeline

ROGUES = Rogues()


@ROGUES.add(
    "common mistake: the second stage loads from layer 0 on", "initialization", "blocks.[23].*", "other-parameter"
)
class SecondStageLoadsTheFirstLayers(Pipeline):
    def own_blocks(self, blocks: nn.ModuleDict) -> nn.ModuleDict:
        if not self.is_first:
            for name in ("2", "3"):
                blocks[name].load_state_dict(blocks[str(int(name) - 2)].state_dict())
        return super().own_blocks(blocks)


@ROGUES.add("common mistake: the layers of a stage run in the other order", "forward", "blocks.*")
class RunsLayersBackwards(Pipeline):
    def own_blocks(self, blocks: nn.ModuleDict) -> nn.ModuleDict:
        return nn.ModuleDict(dict(reversed(list(super().own_blocks(blocks).items()))))


@ROGUES.add(
    "piper#13: gradients of tied embeddings are not synchronized",
    "gradient",
    "tokens.weight head.weight",
    "not-reduced",
)
class TiesNothing(PipelineTied):
    def finish(self, model: Any) -> None:
        pass


@ROGUES.add(
    "common mistake: gradients of tied embeddings are averaged",
    "gradient",
    "tokens.weight head.weight",
    "sum-for-mean",
)
class AveragesTheEnds(PipelineTied):
    def over_ends(self, gradient: torch.Tensor) -> torch.Tensor:
        return super().over_ends(gradient) / 2


@ROGUES.add(
    "Megatron-LM#299 (asked): the head's copy of the embedding starts on its own",
    "initialization forward",
    "tokens.weight head.weight head",
)
class HeadStartsOnItsOwn(PipelineTied):
    def parallelize(self, model: Any) -> Any:
        super().parallelize(model)
        if self.is_last:
            generator = torch.Generator().manual_seed(1)
            with torch.no_grad():
                model.head.weight.copy_(torch.randn(model.head.weight.shape, generator=generator) / 6)
        return model


@ROGUES.add(
    "torchtitan#2972: a loss that is divided after the backward alone",
    "gradient activation-gradient loss",
    "*",
    "sum-for-mean",
)
class DividesAfterTheBackward(Pipeline):
    def scaled(self, loss: torch.Tensor, parts: int) -> torch.Tensor:
        return loss

    def report(self, loss: torch.Tensor) -> torch.Tensor:
        return super().report(loss) / self.microbatches


@ROGUES.add(
    "torchtitan#1733: gradients are scaled again by the number of microbatches", "gradient", "*", "sum-for-mean"
)
class ScalesGradientsAgain(Pipeline):
    def finish(self, model: Any) -> None:
        for parameter in model.parameters():
            parameter.grad.div_(self.microbatches)


@ROGUES.add(
    "common mistake: activations of microbatch i - 1 are sent for microbatch i",
    "forward",
    "blocks.2* blocks.1*",
    pattern="stale shifted",
)
class SendsTheLastActivation(Pipeline):
    last: torch.Tensor | None = None

    def send(self, x: torch.Tensor, direction: int) -> None:
        if direction > 0:
            last, self.last = self.last, x
            is_alike = last is not None and (last.shape, last.dtype) == (x.shape, x.dtype)
            x = last if last is not None and is_alike else x
        super().send(x, direction)


@ROGUES.add(
    "common mistake: gradients come back in the other order than they are used", "gradient activation-gradient", "*"
)
class BackwardInAnotherOrder(Pipeline):
    def schedule(self, parts: int) -> list[tuple[str, int]]:
        order = super().schedule(parts)
        return order if self.is_last else order[:parts] + order[parts:][::-1]


@ROGUES.add("common mistake: gradients are sent in bfloat16", "activation-gradient gradient", "blocks.*", "rounded")
class SendsGradientsInBfloat16(Pipeline):
    def send(self, x: torch.Tensor, direction: int) -> None:
        super().send(x.bfloat16().to(x.dtype) if direction < 0 else x, direction)


@ROGUES.add(
    "picotron#5: the last microbatch is left out of the first stage's backward", "gradient activation-gradient"
)
class LeavesOutTheLastBackward(Pipeline):
    def backward(self, entered: torch.Tensor, left: torch.Tensor) -> None:
        self.count += 1
        if self.is_first and self.count % self.microbatches == 0:
            self.receive(torch.empty_like(left), 1)
        else:
            super().backward(entered, left)

    count = 0


@ROGUES.add("Megatron-LM#2263 (asked): each stage clips by its own norm", "norm", "*", "not-reduced")
class ClipsByStage(PipelineClipped):
    def over_stages(self, square: torch.Tensor) -> torch.Tensor:
        return square


class _ClippedAndTied(PipelineTied, PipelineClipped):
    pass


@ROGUES.add("Megatron-LM#7228, DeepSpeed#1252: a tied weight counts at both ends", "norm", "*")
class CountsTheTiedWeightTwice(_ClippedAndTied):
    pass


@ROGUES.add("common mistake: the first stage's positions are off by one", "forward", "positions tokens blocks.0*")
class PositionsBeginAtOne(Pipeline):
    def parallelize(self, model: Any) -> Any:
        super().parallelize(model)
        if self.is_first:
            model.positions.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
        return model


@ROGUES.add("common mistake: the same microbatch for all", "forward loss", pattern="shifted")
class RepeatsTheFirstMicrobatch(Pipeline):
    def cut(self, batch: Batch) -> list[Batch]:
        return [super().cut(batch)[0]] * self.microbatches


@ROGUES.add(
    "torchtitan#2972, #1733: scale_grads=False, with a loss that is a mean",
    "gradient",
    "*",
    "sum-for-mean",
)
class ScheduleDividesNothing(TorchPipeline):
    def make_schedule(self, stage: PipelineStage) -> Any:
        return self.schedule_class(stage, self.microbatches, self.loss_of_a_part, scale_grads=False)
