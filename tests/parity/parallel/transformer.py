"""A small decoder-only transformer, as plain as a reader expects it.

All sizes can be cut into 2, 3 and 4 parts, and hardly two of them are equal. Norms and biases are off their
defaults, so that a lost one shows. The model returns a loss for each token, as Megatron-LM's and many others do: so a
rank may hold a part of the vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.parity.parallel.parts import Dropout, Experts, Losses, Mlp, Normalizer, attend


@dataclass(frozen=True)
class Sizes:
    """What a transformer is made of."""

    layers: int = 2
    vocabulary: int = 60
    width: int = 36
    heads: int = 12
    hidden: int = 48
    longest: int = 28
    experts: int = 0
    dropout: float = 0.0
    tied: bool = False
    recomputed: bool = False
    normalized: bool = False


class Core(nn.Module):
    """Attention proper: queries, keys and values, each token's position known."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return attend(q, k, v, positions, positions)


class Attention(nn.Module):
    """Causal attention. The number of heads follows from the projections, so that a rank may hold a few of them."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.head_width = sizes.width // sizes.heads
        self.q = nn.Linear(sizes.width, sizes.width)
        self.k = nn.Linear(sizes.width, sizes.width)
        self.v = nn.Linear(sizes.width, sizes.width)
        self.core = Core()
        self.out = nn.Linear(sizes.width, sizes.width)

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        q, k, v = (self.heads(projection(x)) for projection in (self.q, self.k, self.v))
        mixed = self.core(q, k, v, positions)
        out: torch.Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:-1], -1, self.head_width).transpose(1, 2)


class Block(nn.Module):
    """Attention and a perceptron (or experts), each behind its norm."""

    def __init__(self, sizes: Sizes, number: int) -> None:
        super().__init__()
        self.ln1 = nn.LayerNorm(sizes.width)
        self.attention = Attention(sizes)
        self.ln2 = nn.LayerNorm(sizes.width)
        self.mlp: nn.Module = (
            Experts(sizes.width, sizes.hidden, sizes.experts) if sizes.experts else Mlp(sizes.width, sizes.hidden)
        )
        self.dropout = Dropout(sizes.dropout, number) if sizes.dropout else None

    def forward(self, x: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.ln1(x), positions)
        change: torch.Tensor = self.mlp(self.ln2(x))
        if self.dropout is not None:
            change = self.dropout(change, positions, rows)
        return x + change


class Transformer(nn.Module):
    """Token ids and labels of shape (rows, length) in, a loss of each token out."""

    def __init__(self, sizes: Sizes = Sizes(), seed: int = 0) -> None:
        super().__init__()
        self.sizes = sizes
        self.tokens = nn.Embedding(sizes.vocabulary, sizes.width)
        self.positions = nn.Embedding(sizes.longest, sizes.width)
        self.normalizer = Normalizer(sizes.width) if sizes.normalized else None
        self.blocks = nn.ModuleDict({str(number): Block(sizes, number) for number in range(sizes.layers)})
        self.norm = nn.LayerNorm(sizes.width)
        self.head = nn.Linear(sizes.width, sizes.vocabulary, bias=not sizes.tied)
        if sizes.tied:
            self.head.weight = self.tokens.weight
        self.losses = Losses()
        fill(self, seed)

    def forward(
        self,
        tokens: torch.Tensor,
        labels: torch.Tensor,
        rows: torch.Tensor,
        positions: torch.Tensor | None = None,
    ) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1]) if positions is None else positions
        x = self.embed(tokens, positions)
        for block in self.blocks.values():
            x = self.through(block, x, positions, rows)
        return self.judge(x, labels)

    def embed(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.tokens(tokens) + self.positions(positions)
        return x if self.normalizer is None else self.normalizer(x)

    def through(self, block: nn.Module, x: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        if self.sizes.recomputed:
            again: torch.Tensor = checkpoint(block, x, positions, rows, use_reentrant=False)
            return again
        out: torch.Tensor = block(x, positions, rows)
        return out

    def judge(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        losses: torch.Tensor = self.losses(self.head(self.norm(x)), labels)
        return losses


@torch.no_grad()
def fill(model: nn.Module, seed: int) -> None:
    """Draw all parameters in fp64: matrices by their fan-in, norms around 1, biases off 0."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        if parameter.dim() == 2:
            parameter.copy_(drawn / parameter.shape[1] ** 0.5)
        else:
            is_norm = name.endswith("weight")
            parameter.copy_(1 + 0.2 * drawn if is_norm else 0.2 * drawn)
