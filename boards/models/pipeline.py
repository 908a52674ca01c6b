"""A pipeline of two stages: each rank loads its own by transformers' ``pp_size``, and torch's schedule runs them.

transformers' own run of its stages sends no gradients: it is for inference. What a stage has and computes is
transformers' here, and what is sent is torch's: the second stage takes what it receives as ``inputs_embeds``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

Measure = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class Stage(nn.Module):
    """A rank's part of a model, as transformers runs it: what the other has is the identity here."""

    def __init__(self, part: Any, tied: bool, measure: Measure) -> None:
        from transformers.distributed.pipeline_parallel import PipelineIdentityLayer

        super().__init__()
        del part.forward  # that sends and receives
        self.part, self.tied, self.measure, self.last = part, tied, measure, bool(dist.get_rank())
        self.base = part.base_model_prefix
        self.others = {name for name, each in part.named_modules() if isinstance(each, PipelineIdentityLayer)}

    def forward(self, inputs: torch.Tensor) -> Any:
        if self.last:
            return self.part(inputs_embeds=inputs).logits
        return getattr(self.part, self.base)(input_ids=inputs).last_hidden_state

    def name(self, name: str) -> str:
        """Return the plain model's name of what stands here, and what the plain model has not of identities."""
        name = name.removeprefix("part.")
        strange = name in self.others or (name == self.base and not self.last)
        return f"{name} of the other stage" if strange else name

    def train_step(self, optimizer: Any, tokens: torch.Tensor, microbatches: int) -> torch.Tensor | None:
        """Train one step; return the loss, which the last stage has."""
        rows = tokens[: len(tokens) // microbatches]
        hidden = torch.empty(*rows.shape, self.part.config.hidden_size, dtype=self.part.dtype, requires_grad=True)
        # With examples it runs nothing to find out sizes. Those of what the last returns are not asked for.
        stage = PipelineStage(
            self,
            dist.get_rank(),
            2,
            torch.device("cpu"),
            hidden if self.last else rows,
            hidden,
            group=dist.group.WORLD,
        )
        # 1F1B wants a microbatch for each stage.
        kind = Schedule1F1B if microbatches > 1 else ScheduleGPipe
        losses: list[torch.Tensor] = []
        try:
            kind(stage, microbatches, self.measure).step(
                *(() if self.last else (tokens,)), target=tokens if self.last else None, losses=losses
            )
        except RuntimeError as error:
            # torch says what it passed to the model, and the model what is wrong.
            raise (error.__cause__ or error) from None
        if self.tied:
            # Both ends have the weight.
            dist.all_reduce(self.part.get_input_embeddings().weight.grad)
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack(losses).mean().detach() if self.last else None


def staged(parallelize: Callable[[Any], Any], measure: Measure) -> dict[str, Any]:
    """Return the arguments of parity by which what each rank has loaded is a stage."""
    now: list[Stage] = []

    def cut(model: Any) -> Stage:
        tied = getattr(model.get_output_embeddings(), "weight", None) is model.get_input_embeddings().weight
        now[:] = [Stage(parallelize(model), tied, measure)]
        return now[0]

    return {
        "parallelize": cut,
        "step": lambda stage, optimizer, batch, microbatches: stage.train_step(
            optimizer, batch["input_ids"], microbatches
        ),
        "rename": lambda name: now[0].name(name),
        # Which modules a stage runs does not depend on the dtype.
        "dtypes": (torch.float64,),
    }
