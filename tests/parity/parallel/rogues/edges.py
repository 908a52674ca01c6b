"""Rogues of a cut head's losses, and of norms over parts."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.parity.parallel.collectives import summed
from tests.parity.parallel.rogue import Rogues
from tests.parity.parallel.subjects.megatron import Megatron, MegatronClipped, VocabularyLosses

ROGUES = Rogues()


class _LabelsOffByOne(VocabularyLosses):
    def first(self, width: int) -> int:
        return max(super().first(width) - 1, 0)


@ROGUES.add("common mistake: labels of a part are off by one", "loss forward", "losses *", "")
class LabelsAreOffByOne(Megatron):
    vocabulary_losses = _LabelsOffByOne


class _OwnTotal(VocabularyLosses):
    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        self.calls = 0
        return super().forward(logits, labels)

    def over_parts(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x if self.calls == 1 else super().over_parts(x)


@ROGUES.add(
    "common mistake: the sum of exponentials is not reduced",
    "loss forward",
    "losses *",
    "not-reduced replicas-differ",
)
class TotalsAreLocal(Megatron):
    vocabulary_losses = _OwnTotal


class _OwnWanted(_OwnTotal):
    def over_parts(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super(_OwnTotal, self).over_parts(x) if self.calls == 1 else x


@ROGUES.add(
    "common mistake: the wanted logit is not reduced", "loss forward", "losses *", "not-reduced replicas-differ"
)
class WantedLogitsAreLocal(Megatron):
    vocabulary_losses = _OwnWanted


class _LocalLargest(VocabularyLosses):
    def largest(self, logits: torch.Tensor) -> torch.Tensor:
        return logits.detach().amax(-1)


@ROGUES.add("common mistake: each rank shifts its logits by its own maximum", "loss forward", "losses *")
class MaximaAreLocal(Megatron):
    vocabulary_losses = _LocalLargest


class _TwiceTotal(VocabularyLosses):
    def forward(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        size = torch.distributed.get_world_size(self.group)
        return super().forward(logits, labels) + torch.log(torch.tensor(float(size))) * (labels != -100)


@ROGUES.add(
    "Megatron-LM#7452 (2): gathered logits are summed as parts, so the loss has log(TP) on top",
    "loss forward",
    "losses *",
)
class LossHasALogarithmOnTop(Megatron):
    vocabulary_losses = _TwiceTotal


@ROGUES.add("torchtune#2420, torchtitan#766: the norm of this rank's parts", "norm", pattern="not-reduced")
class NormIsLocal(MegatronClipped):
    def over_parts(self, square: torch.Tensor) -> torch.Tensor:
        return square


@ROGUES.add("TransformerEngine#715 of ROCm, NeMo-RL#3788: what every rank has counts on each", "norm")
class NormCountsReplicasAgain(MegatronClipped):
    def is_cut(self, name: str) -> bool:
        return True


@ROGUES.add("DeepSpeed#8478: the mean of the ranks' norms", "norm")
class NormIsAMean(MegatronClipped):
    def norm(self, model: Any) -> torch.Tensor:
        grads = [parameter.grad.double().square().sum() for parameter in model.parameters()]
        return summed(torch.stack(grads).sum().sqrt(), self.parts_group) / self.size


@ROGUES.add("common mistake: only what is cut is clipped", "update gradient")
class ClipsOnlyWhatIsCut(MegatronClipped):
    def scale(self, parameter: nn.Parameter, scale: torch.Tensor) -> None:
        if parameter.dim() == 2:
            super().scale(parameter, scale)


@ROGUES.add("common mistake: norms and biases are not in the norm", "norm")
class NormLacksVectors(MegatronClipped):
    def norm(self, model: Any) -> torch.Tensor:
        square = torch.zeros(()).double()
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2 and self.is_cut(name):
                square = square + parameter.grad.double().square().sum()
        return self.over_parts(square).sqrt()
