"""Rogues of tensor parallelism by torch's means."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import Placement, Replicate
from torch.distributed.tensor.parallel import ParallelStyle, RowwiseParallel

from tests.parity.parallel.parts import IGNORED
from tests.parity.parallel.rogue import Rogues
from tests.parity.parallel.subjects.dtensors import TorchSequence, TorchTensor, TorchVocabulary, whole
from tests.parity.parallel.subjects.megatron import AnnotatedColumn, MegatronAnnotated

ROGUES = Rogues()


@ROGUES.add(
    "Apertus in transformers: a norm on parts of the sequence that no rule names",
    "gradient",
    "*.ln2.*",
    "not-reduced",
)
class SecondNormHasNoRule(TorchSequence):
    def perceptron(self) -> dict[str, ParallelStyle]:
        return {name: style for name, style in super().perceptron().items() if name != "ln2"}


class _LocalRow(RowwiseParallel):
    """Gives the local part of the product on, which is not summed."""

    @staticmethod
    def _prepare_output_fn(
        output_layouts: Any, use_local_output: Any, mod: Any, outputs: Any, device_mesh: Any
    ) -> Any:
        return outputs.to_local()


@ROGUES.add("common mistake: a row-wise product that is not summed", "forward", "blocks.0.mlp*", "not-reduced")
class DownIsNotSummed(TorchTensor):
    def perceptron(self) -> dict[str, ParallelStyle]:
        return {**super().perceptron(), "mlp.down": _LocalRow()}


@ROGUES.add(
    "torchtitan#4332: the gradient of a row-wise bias is divided by the ranks",
    "gradient",
    "*.out.bias",
    "sum-for-mean",
)
class BiasOfTheOutputIsDivided(TorchTensor):
    def parallelize(self, model: Any) -> Any:
        super().parallelize(model)
        for block in model.blocks.values():
            block.attention.out.bias.register_hook(self.divided)
        return model

    def divided(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient / self.size


@ROGUES.add(
    "common mistake: positions are looked up for the first part by every rank", "forward", "positions *", "shifted"
)
class FirstPositionsEverywhere(TorchSequence):
    def parallelize(self, model: Any) -> Any:
        super().parallelize(model)
        model.positions.register_forward_pre_hook(self.first)
        return model

    def first(self, module: Any, args: Any) -> Any:
        length = args[0].shape[0] // self.size
        return (args[0][:length].repeat(self.size),)


@ROGUES.add(
    "common mistake: an entry of a fused projection is loaded twice", "initialization", "*.k.*", "other-parameter"
)
class KeysAreQueries(TorchTensor):
    def parallelize(self, model: Any) -> Any:
        for block in model.blocks.values():
            block.attention.k.load_state_dict(block.attention.q.state_dict())
        return super().parallelize(model)


@ROGUES.add(
    "gpt-neox#1259: the gradients of norms are a mean over parts of the sequence",
    "gradient",
    "norm.*",
    "sum-for-mean",
)
class LastNormIsAMean(TorchSequence):
    def parallelize(self, model: Any) -> Any:
        super().parallelize(model)
        for parameter in model.norm.parameters():
            parameter.register_hook(lambda gradient: gradient / self.size)
        return model


@ROGUES.add(
    "common mistake: the head's bias is initialised after the cut, from each rank's seed",
    "initialization",
    "head.bias",
    "",
)
class HeadStartsAfterTheCut(TorchTensor):
    def parallelize(self, model: Any) -> Any:
        super().parallelize(model)
        nn.init.constant_(model.head.bias.to_local(), 0.1 * (1 + self.rank))
        return model


@ROGUES.add("common mistake: the input of the perceptron is cut again", "forward activation-gradient", "blocks.*")
class PerceptronSeesOtherTokens(TorchSequence):
    def parallelize(self, model: Any) -> Any:
        super().parallelize(model)
        for block in model.blocks.values():
            block.ln2.register_forward_hook(lambda module, args, out: out.flip(1))
        return model


@ROGUES.add(
    "pytorch#190746: within loss_parallel, the backward of a log_softmax that no cross entropy takes is the identity",
    "activation-gradient",
    "head",
)
class SmoothsLabelsByHand(TorchVocabulary):
    def scored(self, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """loss_parallel knows no label smoothing, so it is written out."""
        spread = -whole(nn.functional.log_softmax(scores, -1).mean(-1))
        return 0.9 * super().scored(scores, labels) + 0.1 * spread * (labels != IGNORED)


class _SaysItIsWhole(AnnotatedColumn):
    def placement(self, name: str) -> Placement:
        return Replicate() if name == "bias" else super().placement(name)


@ROGUES.add(
    "common mistake: from_local with a placement that is another parameter's",
    "initialization",
    "blocks.0.mlp.up.bias",
    "wrong-annotation",
)
class ClaimsToBeWhole(MegatronAnnotated):
    annotated = _SaysItIsWhole
