"""What the models of tokens share: their batches, their loss, and weights of which no norm is one."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

VOCABULARY, ROWS, TOKENS = 64, 8, 12


def batch(step: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {"tokens": torch.randint(0, VOCABULARY, (ROWS, TOKENS), generator=generator)}


def loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the mean loss of the next token."""
    return of_logits(model(batch["tokens"]), batch["tokens"])


def of_logits(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def moved(model: nn.Module) -> Any:
    """Move what begins as ones or zeros, as no mistake in it would be seen; return the model, to be trained."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype))
    return model.train()
