"""Rogues of sequence parallelism by hand."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from tests.parity.parallel.collectives import Gather, own_part, summed
from tests.parity.parallel.rogue import Rogues
from tests.parity.parallel.subject import ByHand
from tests.parity.parallel.subjects.megatron import GatheringColumn, MegatronSequence, ScatteringRow

ROGUES = Rogues()


@ROGUES.add(
    "gpt-neox#1257: gradients of norms are not reduced over the sequence",
    "gradient",
    "norm.* *.ln?.* *.bias positions.*",
    "not-reduced",
)
class ReducesNothingOverTheSequence(MegatronSequence):
    def finish(self, model: Any) -> None:
        pass


@ROGUES.add("Megatron-LM#1446: the last norm is not marked as sequence parallel", "gradient", "norm.*", "not-reduced")
class ForgetsTheLastNorm(MegatronSequence):
    partial = ("ln1.", "ln2.", "out.bias", "down.bias", "positions.")


@ROGUES.add(
    "Megatron-LM#236 (asked): biases of row-cut layers have partial gradients, too",
    "gradient",
    "*.out.bias *.down.bias",
    "not-reduced",
)
class ForgetsTheBiases(MegatronSequence):
    partial = ("ln1.", "ln2.", "norm.", "positions.")


@ROGUES.add(
    "NeMo-RL#3716: a second train step misses the reduction",
    "gradient",
    "norm.* *.ln?.* *.bias positions.*",
    "not-reduced",
)
class ReducesInTheFirstStepOnly(MegatronSequence):
    steps = 0

    def finish(self, model: Any) -> None:
        self.steps += 1
        if self.steps == 1:
            super().finish(model)


@ROGUES.add(
    "gpt-neox#1259: a mean over the sequence in place of a sum",
    "gradient",
    "norm.* *.ln?.* *.bias positions.*",
    "sum-for-mean",
)
class AveragesOverTheSequence(MegatronSequence):
    def over_sequence(self, gradient: torch.Tensor) -> torch.Tensor:
        return super().over_sequence(gradient) / self.size


@ROGUES.add(
    "transformers, qwen3's q_norm: reduced by a hook after each microbatch",
    "gradient",
    "norm.* *.ln?.* *.bias positions.*",
    "reduced-twice",
)
class ReducesAfterEachMicrobatch(ByHand, MegatronSequence):
    def scaled(self, loss: torch.Tensor, parts: int) -> torch.Tensor:
        if not self.hooked:
            self.hooked = True
            for name, parameter in self.module.named_parameters():
                if self.is_partial(name):
                    parameter.register_post_accumulate_grad_hook(self.reduce)
        return super().scaled(loss, parts)

    hooked = False

    def parallelize(self, model: Any) -> Any:
        self.module = super().parallelize(model)
        return self.module

    def reduce(self, parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad = summed(parameter.grad, self.parts_group)

    def finish(self, model: Any) -> None:
        pass


@ROGUES.add(
    "common mistake: every rank has the positions of the first part", "forward", "positions blocks.0*", "shifted"
)
class FirstPositionsOnEveryPart(MegatronSequence):
    def own_positions(self, module: Any, args: Any, out: torch.Tensor) -> torch.Tensor:
        return out.chunk(self.size)[0]


class _Sliced(GatheringColumn):
    def enter(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = Gather.apply(x, 1, self.group)
        return out


@ROGUES.add(
    "common mistake: the gathered input's gradient is cut, and not summed before",
    "activation-gradient",
    "norm blocks.* head",
    "lacks-others",
)
class CutsGradientsWithoutASum(MegatronSequence):
    column = _Sliced


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return own_part(summed(x, group), 1, group)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        parts = [torch.zeros_like(gradients[0]) for _ in range(dist.get_world_size(ctx.group))]
        parts[dist.get_rank(ctx.group)] = gradients[0]
        return torch.cat(parts, 1), None


class _OwnGradient(ScatteringRow):
    def leave(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = _Dropped.apply(x, self.group)
        return out


@ROGUES.add(
    "common mistake: a scatter whose backward does not gather",
    "activation-gradient gradient",
    "blocks.*",
)
class KeepsGradientsOfItsOwnPart(MegatronSequence):
    row = _OwnGradient


@ROGUES.add(
    "common mistake: embeddings are scattered by rows of the batch for one rank", "forward", "tokens blocks.0* losses"
)
class ShufflesTheSequence(MegatronSequence):
    def cut_edges(self, model: Any) -> None:
        super().cut_edges(model)
        model.tokens.register_forward_hook(lambda module, args, out: out.flip(1))
