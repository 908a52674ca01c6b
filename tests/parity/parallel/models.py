"""Transformers with what others have: a second head, shared heads, packed documents, rotary positions and more."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.parity.parallel.parts import Experts, Losses
from tests.parity.parallel.transformer import Attention, Core, Sizes, Transformer, fill

#: The row of the embedding that stands for no token.
PADDING = 3
#: How many tokens a packed document has.
DOCUMENT = 5


class TwoHeads(Transformer):
    """A second head looks further ahead; both losses of each token come out."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.ahead = nn.Linear(sizes.width, sizes.vocabulary)
        self.ahead_losses = Losses()
        fill(self, 1)

    def judge(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        further = F.pad(labels[:, 1:], (0, 1), value=-100)
        return super().judge(x, labels), self.ahead_losses(self.ahead(x), further)


class SharedHeads(Attention):
    """All heads of queries have one head of keys and values."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__(sizes)
        self.k = nn.Linear(sizes.width, self.head_width)
        self.v = nn.Linear(sizes.width, self.head_width)

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        q, k, v = (self.heads(projection(x)) for projection in (self.q, self.k, self.v))
        k, v = (each.expand(-1, q.shape[1], -1, -1) for each in (k, v))
        out: torch.Tensor = self.out(self.core(q, k, v, positions).transpose(1, 2).flatten(2))
        return out


def grouped(sizes: Sizes) -> Transformer:
    """Return a transformer whose heads of queries share keys and values."""
    model = Transformer(sizes)
    block: Any
    for block in model.blocks.values():
        block.attention = SharedHeads(sizes)
    fill(model, 0)
    return model


class PackedCore(Core):
    """A row has several documents, one behind the other: a token sees its own alone."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return self.attend(q, k, v, positions, positions)

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, positions: torch.Tensor, keys: torch.Tensor
    ) -> torch.Tensor:
        visible = positions[:, None] >= keys[None, :]
        visible &= self.document(positions)[:, None] == self.document(keys)[None, :]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=visible)

    def document(self, positions: torch.Tensor) -> torch.Tensor:
        return positions // DOCUMENT


class Recurrence(Core):
    """A state that decays from token to token, in place of attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.empty(width))

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return q * self.states(k * v, positions)

    def states(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        return torch.einsum("tsd,bhsd->bhtd", self.left_of(positions[:, None] - positions[None, :]), x)

    def left_of(self, ages: torch.Tensor) -> torch.Tensor:
        """Return what is left of a state that is some tokens old; nothing comes from the future."""
        left: torch.Tensor = torch.sigmoid(self.decay) ** ages.clamp(min=0)[..., None]
        return left * (ages >= 0)[..., None]


class Turns(nn.Module):
    """The cosine and the sine by which each position turns a pair of features, slower in a sequence that is long."""

    def forward(self, positions: torch.Tensor, length: int) -> torch.Tensor:
        angles = 0.7 * positions.double() / max(1.0, length / 8)
        return torch.stack([angles.cos(), angles.sin()], dim=-1)


class TurningCore(Core):
    """Two features of each head are turned by their position."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = Turns()

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        turns = self.turns(positions, len(positions))
        return super().forward(turned(q, turns), turned(k, turns), v, positions)


def turned(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Turn the first two features of each head."""
    (cosine, sine), (first, second) = turns.to(x.dtype).unbind(-1), x[..., :2].unbind(-1)
    pair = torch.stack([first * cosine - second * sine, first * sine + second * cosine], dim=-1)
    return torch.cat([pair, x[..., 2:]], dim=-1)


def with_core(sizes: Sizes, core: type[PackedCore | TurningCore | Recurrence]) -> Transformer:
    """Return a transformer with another core of attention."""
    model = Transformer(sizes)
    block: Any
    for block in model.blocks.values():
        width = block.attention.head_width
        block.attention.core = Recurrence(width) if issubclass(core, Recurrence) else core()
    fill(model, 0)
    return model


class Adapted(nn.Linear):
    """A linear layer with an adapter of low rank."""

    def __init__(self, inputs: int, outputs: int, rank: int = 3) -> None:
        super().__init__(inputs, outputs)
        self.a, self.b = nn.Parameter(torch.empty(rank, inputs)), nn.Parameter(torch.empty(outputs, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + F.linear(F.linear(x, self.a), self.b)


def adapted(sizes: Sizes) -> Transformer:
    """Return a transformer of which adapters alone are trained."""
    model = Transformer(sizes)
    block: Any
    for block in model.blocks.values():
        block.attention.q, block.attention.v = (Adapted(sizes.width, sizes.width) for _ in range(2))
    fill(model, 0)
    freeze(model)
    return model


def freeze(model: nn.Module) -> None:
    """Train adapters alone."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith((".a", ".b")))


class ScaledExperts(Experts):
    """Its router has a learned scale, one number."""

    scale: nn.Parameter

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shares = torch.softmax(self.router(x) * self.scale, dim=-1)
        weights, chosen = shares.topk(self.chosen_experts, dim=-1)
        self.auxiliary = self.balance(shares, chosen)
        out = self.dispatch(x.flatten(0, 1), weights.flatten(0, 1), chosen.flatten(0, 1))
        return out.view(x.shape)


def scaled(sizes: Sizes) -> Transformer:
    """Return a transformer whose routers have a learned scale."""
    model = Transformer(sizes)
    block: Any
    for block in model.blocks.values():
        block.mlp.__class__ = ScaledExperts
        block.mlp.scale = nn.Parameter(torch.full((1,), 1.25))
    return model


def padded(sizes: Sizes) -> Transformer:
    """Return a transformer with an embedding one of whose rows is not trained."""
    model = Transformer(sizes)
    model.tokens = nn.Embedding(sizes.vocabulary, sizes.width, padding_idx=PADDING)
    fill(model, 0)
    return model
