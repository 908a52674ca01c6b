"""Rogues of experts over ranks."""

from __future__ import annotations

from typing import Any

import torch

from tests.parity.parallel.collectives import summed
from tests.parity.parallel.rogue import Rogues
from tests.parity.parallel.subjects.experts import ExpertParallel, SpreadExperts

ROGUES = Rogues()


@ROGUES.add(
    "pytorch#160285, Megatron-LM#5956, DeepSpeed#6546: expert gradients are W times what they are",
    "gradient",
    "*.experts.*",
    "sum-for-mean",
)
class DividesNoExpert(ExpertParallel):
    def of_an_expert(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


@ROGUES.add(
    "common mistake: gradients of different experts are averaged", "gradient", "*.experts.*", "other-parameter"
)
class AveragesExperts(ExpertParallel):
    def of_an_expert(self, gradient: torch.Tensor) -> torch.Tensor:
        return summed(gradient, self.parts_group) / self.size


@ROGUES.add(
    "fairseq#4220 (asked): the group of a parameter is skipped, here the router's",
    "gradient",
    "*.router.*",
    "not-reduced",
)
class ReducesNoRouter(ExpertParallel):
    def finish(self, model: Any) -> None:
        routers = [parameter for name, parameter in model.named_parameters() if ".router." in name]
        kept = [parameter.grad.clone() for parameter in routers]
        super().finish(model)
        for parameter, gradient in zip(routers, kept, strict=True):
            parameter.grad.copy_(gradient)


@ROGUES.add(
    "NeMo Automodel#1412 (1): the auxiliary loss never reaches the graph", "gradient activation-gradient", "*"
)
class AuxiliaryHasNoGradient(ExpertParallel):
    def parallelize(self, model: Any) -> Any:
        model.is_parallel = True
        return super().parallelize(model)

    def auxiliary(self, model: Any) -> torch.Tensor:
        loss = super().auxiliary(model)
        return loss.detach() if hasattr(model, "is_parallel") else loss


@ROGUES.add(
    "NeMo Automodel#1412 (2), Megatron-LM#5047: the auxiliary loss shrinks with the ranks",
    "loss activation-gradient gradient",
    "*",
)
class AuxiliaryShrinks(ExpertParallel):
    def parallelize(self, model: Any) -> Any:
        model.is_parallel = True
        return super().parallelize(model)

    def auxiliary(self, model: Any) -> torch.Tensor:
        return super().auxiliary(model) / (self.size if hasattr(model, "is_parallel") else 1)


@ROGUES.add("common mistake: a forgotten auxiliary loss", "loss", "*")
class ForgetsTheAuxiliary(ExpertParallel):
    def parallelize(self, model: Any) -> Any:
        model.is_parallel = True
        return super().parallelize(model)

    def auxiliary(self, model: Any) -> torch.Tensor:
        return super().auxiliary(model) * (0.0 if hasattr(model, "is_parallel") else 1.0)


class _OfTheBatch(SpreadExperts):
    def balance(self, shares: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        return super().balance(shares.flatten(0, 1)[None], chosen.flatten(0, 1)[None])


@ROGUES.add("megablocks#85, torchtitan#3000: a balance of each microbatch, which is no mean of them", "loss", "*")
class BalancesEachMicrobatch(ExpertParallel):
    experts = _OfTheBatch


class _Unordered(SpreadExperts):
    def restore(self, answers: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        return answers


@ROGUES.add("common mistake: answers go back in the experts' order", "forward", "blocks.0.mlp*")
class RestoresNoOrder(ExpertParallel):
    experts = _Unordered


class _OrderedTwice(SpreadExperts):
    def restore(self, answers: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
        return answers[order]


@ROGUES.add("common mistake: a permutation is applied where its inverse was meant", "forward", "blocks.0.mlp*")
class RestoresByTheSamePermutation(ExpertParallel):
    experts = _OrderedTwice


class _OwnCounts(SpreadExperts):
    def answer(self, inputs: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        return super().answer(inputs, counts.flip(0))


@ROGUES.add("common mistake: the counts of ranks are in another order than their tokens", "forward", "blocks.0.mlp*")
class CountsAreInAnotherOrder(ExpertParallel):
    experts = _OwnCounts


class _Normalized(SpreadExperts):
    def dispatch(self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        return super().dispatch(x, weights / weights.sum(-1, keepdim=True), chosen)


@ROGUES.add(
    "common mistake: weights of the chosen experts are normalized in one implementation only",
    "forward",
    "blocks.0.mlp*",
)
class NormalizesWeights(ExpertParallel):
    experts = _Normalized


@ROGUES.add(
    "common mistake: every rank has loaded the first rank's experts",
    "initialization",
    "*.experts.*",
    "other-parameter",
)
class FirstExpertsEverywhere(ExpertParallel):
    def parallelize(self, model: Any) -> Any:
        local = self.transformer.experts // self.size
        for block in model.blocks.values():
            for name, expert in block.mlp.experts.items():
                expert.load_state_dict(block.mlp.experts[str(int(name) % local)].state_dict())
        return super().parallelize(model)


@ROGUES.add("common mistake: experts are dealt out one by one, and expected in rows", "forward", "blocks.0.mlp*")
class DealsExpertsInTurn(ExpertParallel):
    def is_mine(self, number: int) -> bool:
        return number % self.size == self.rank


@ROGUES.add(
    "common mistake: a fused expert's biases are left out of its backward",
    "gradient",
    "*.experts.*.bias",
    "zero",
)
class ExpertBiasesHaveNoGradient(ExpertParallel):
    def of_an_expert(self, gradient: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(gradient) if gradient.dim() == 1 else super().of_an_expert(gradient)
