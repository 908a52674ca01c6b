"""Rogues of gradients averaged by hand, and of ZeRO-1 by hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tests.parity.parallel.rogue import Rogues
from tests.parity.parallel.subjects.replicas import (
    Averaged,
    AveragedByHooks,
    SummedByHooks,
    ZeroByHand,
)
from tests.parity.parallel.subjects.teachers import AveragesBefore, Teacher

ROGUES = Rogues()


@ROGUES.add("common mistake: an all-reduce with SUM, and no division", "gradient", pattern="sum-for-mean")
class Sums(Averaged):
    def mean(self, bucket: torch.Tensor) -> torch.Tensor:
        return super().mean(bucket) * self.size


@ROGUES.add("common mistake: divided twice, by the loss and by the mean", "gradient", pattern="sum-for-mean", size=4)
class DividesTwice(Averaged):
    def mean(self, bucket: torch.Tensor) -> torch.Tensor:
        return super().mean(bucket) / self.size


@ROGUES.add("common mistake: a divisor of 2, right in the tests' world", "gradient", pattern="sum-for-mean", size=3)
class DividesByTwo(Averaged):
    def mean(self, bucket: torch.Tensor) -> torch.Tensor:
        return super().mean(bucket) * self.size / 2


@ROGUES.add("Megatron-LM#372, #502: gradients are reduced in bfloat16", "gradient", pattern="rounded")
class ReducesInBfloat16(Averaged):
    def mean(self, bucket: torch.Tensor) -> torch.Tensor:
        return super().mean(bucket.bfloat16()).to(bucket.dtype)


@ROGUES.add("DeepSpeed#5606: a bucket is used before it has been reduced", "gradient", pattern="stale")
class GivesTheLastStepsMean(Averaged):
    last: torch.Tensor | None = None

    def mean(self, bucket: torch.Tensor) -> torch.Tensor:
        mean = super().mean(bucket)
        self.last, last = mean, self.last
        return mean if last is None else last


@ROGUES.add("composer#9: parameters that were not used last are not reduced", "gradient", "head.*", "not-reduced")
class ForgetsTheHead(Averaged):
    def reduced(self, model: nn.Module) -> list[nn.Parameter]:
        return [parameter for name, parameter in model.named_parameters() if not name.startswith("head.")]


@ROGUES.add(
    "common mistake: a bucket is read in another order than it was written", "gradient", "blocks.*", "other-parameter"
)
class SwapsTwoNorms(Averaged):
    def finish(self, model: Any) -> None:
        super().finish(model)
        first, second = model.blocks["0"].ln1.weight, model.blocks["0"].ln2.weight
        first.grad, second.grad = second.grad, first.grad


@ROGUES.add(
    "AReaL#313: a module outside of the wrapper has a gradient that nobody reduces",
    "gradient",
    "norm.*",
    "not-reduced",
)
class HooksNotTheLastNorm(AveragedByHooks):
    def is_reduced(self, name: str) -> bool:
        return not name.startswith("norm.")


@ROGUES.add(
    "common mistake: zero_grad comes after the backward for a new parameter group", "gradient", "positions.*", "zero"
)
class ClearsThePositions(Averaged):
    def finish(self, model: Any) -> None:
        model.positions.weight.grad.zero_()
        super().finish(model)


@ROGUES.add("common mistake: a bucket of a fixed length loses its end", "gradient", "*", "from-index not-reduced")
class LosesTheEndOfTheBucket(Averaged):
    def mean(self, bucket: torch.Tensor) -> torch.Tensor:
        kept = len(bucket) - 1000
        return torch.cat([super().mean(bucket[:kept]), bucket[kept:]])


@ROGUES.add("common mistake: rank 0 broadcasts its gradients in place of a mean", "gradient", pattern="not-reduced")
class BroadcastsRankZeros(Averaged):
    def mean(self, bucket: torch.Tensor) -> torch.Tensor:
        dist.broadcast(bucket, 0)
        return bucket


@ROGUES.add(
    "common mistake: only rank 0 has the mean (reduce in place of all_reduce)",
    "gradient",
    pattern="not-reduced replicas-differ",
)
class ReducesToRankZero(Averaged):
    def give(self, gradient: torch.Tensor, mean: torch.Tensor) -> None:
        if self.rank == 0:
            super().give(gradient, mean)


@ROGUES.add(
    "transformers, qwen3's q_norm: a hook reduces what is accumulated already", "gradient", pattern="reduced-twice"
)
class ReducesWhatIsAccumulated(SummedByHooks):
    def hook(self, parameter: nn.Parameter) -> None:
        parameter.register_post_accumulate_grad_hook(self.reduce)

    def reduce(self, parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.copy_(self.mean(parameter.grad))


@ROGUES.add("transformers, Apertus' alpha_p: a parameter that no rule names", "gradient", "*.ln?.bias", "not-reduced")
class ForgetsBiasesOfNorms(SummedByHooks):
    def is_reduced(self, name: str) -> bool:
        return not name.endswith(("ln1.bias", "ln2.bias"))


@ROGUES.add(
    "common mistake: the last parameter is not gathered after the step",
    "update replicas",
    "head.bias",
    "replicas-differ zero",
)
class KeepsTheLastToItself(ZeroByHand):
    def send(self, parameter: nn.Parameter, owner: int) -> None:
        if parameter.shape != (self.transformer.vocabulary,):
            super().send(parameter, owner)


@ROGUES.add("common mistake: norms and biases get weight decay in the sharded optimizer", "update")
class DecaysNothing(ZeroByHand):
    def inner(self, params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(params, lr=1e-2, weight_decay=0.0)


@ROGUES.add(
    "common mistake: the last rank's optimizer has the default rate", "update", pattern="sum-for-mean replicas-differ"
)
class LastRankHasAnotherRate(ZeroByHand):
    def inner(self, params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        rate = 1e-3 if self.rank == self.size - 1 else 1e-2
        return torch.optim.AdamW(params, lr=rate, weight_decay=0.1)


@ROGUES.add("common mistake: a remainder of parameters that nobody owns", "update", "*", "zero stale", size=3)
class OwnsOnlyWholeRounds(ZeroByHand):
    def inner(self, params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return super().inner(list(params)[: 37 // self.size])


@ROGUES.add("common mistake: the optimizer is made anew in each step, and begins with an empty state", "update")
class ForgetsItsState(ZeroByHand):
    def send(self, parameter: nn.Parameter, owner: int) -> None:
        super().send(parameter, owner)
        if self.optimizers:
            self.optimizers[0].state.clear()

    optimizers: tuple[torch.optim.Optimizer, ...] = ()

    def inner(self, params: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        self.optimizers = (super().inner(params),)
        return self.optimizers[0]


@ROGUES.add("common mistake: a teacher's average is taken before the step, one step late", "update")
class AveragesWeightsBeforeTheStep(Teacher):
    ranks_optimizer = AveragesBefore
