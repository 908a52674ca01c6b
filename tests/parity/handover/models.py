"""A trainer's model, and the same model as a rollout engine has it: fused, with transposed weights, in parts."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH, HEADS, LAYERS = 12, 8, 2, 2
HEAD = WIDTH // HEADS


def tokens() -> torch.Tensor:
    """Return two rows of six tokens, among which not all of the vocabulary is."""
    return torch.tensor([[1, 4, 2, 8, 5, 7], [3, 1, 4, 1, 5, 9]])


def turned(x: torch.Tensor, *, interleaved: bool) -> torch.Tensor:
    """Turn pairs of features by their position: neighbours, or those of two halves."""
    rates = 1.0 / 10 ** (torch.arange(HEAD // 2, dtype=x.dtype) / (HEAD // 2))
    angles = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * rates
    if interleaved:
        first, second = x[..., ::2], x[..., 1::2]
    else:
        first, second = x.chunk(2, dim=-1)
    pair = first * angles.cos() - second * angles.sin(), first * angles.sin() + second * angles.cos()
    return torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, interleaved: bool) -> torch.Tensor:
    """Return causal attention of rows whose heads are turned by position."""
    q, k, v = (each.unflatten(-1, (HEADS, HEAD)).transpose(1, 2) for each in (q, k, v))
    q, k = (turned(each, interleaved=interleaved) for each in (q, k))
    scores = (q @ k.transpose(-1, -2) / math.sqrt(HEAD)).masked_fill(
        torch.ones(q.shape[-2], q.shape[-2]).triu(1).bool(), -math.inf
    )
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(-2)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.o(attended(self.q(x), self.k(x), self.v(x), interleaved=True))
        return found


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(WIDTH, 16), nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return found


class Block(nn.Module):
    attention: type[nn.Module] = Attention
    mlp: type[nn.Module] = Mlp

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn, self.ff = self.attention(), self.mlp()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.norm1(x))
        found: torch.Tensor = x + self.ff(self.norm2(x))
        return found


class Trainer(nn.Module):
    """A small model of tokens, whose head is the embedding if it is tied."""

    block: type[nn.Module] = Block

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(self.block() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        found: torch.Tensor = self.head(self.norm(x))
        return found


class Conv1D(nn.Module):
    """A linear layer whose weight is transposed, as in GPT-2."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(before, after)), nn.Parameter(torch.zeros(after))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + self.bias


class FusedAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.o = nn.Linear(WIDTH, 3 * WIDTH), Conv1D(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.o(attended(*self.qkv(x).chunk(3, dim=-1), interleaved=False))
        return found


class FusedMlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_up, self.down = nn.Linear(WIDTH, 32), nn.Linear(16, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        found: torch.Tensor = self.down(functional.silu(gate) * up)
        return found


class FusedBlock(Block):
    attention, mlp = FusedAttention, FusedMlp


class Engine(Trainer):
    """The same model, fused, whose heads are turned in halves."""

    block = FusedBlock


State = dict[str, Any]


class Converter:
    """From the trainer's state dict to the engine's; each decision is a method."""

    def __call__(self, state: State) -> State:
        found = {name: value for name, value in state.items() if not name.startswith("blocks.")}
        for layer in range(LAYERS):
            found |= self.block(f"blocks.{layer}.", layer, state)
        return found

    def block(self, prefix: str, layer: int, state: State) -> State:
        mine = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
        found = {
            f"{name}.{kind}": mine[f"{name}.{kind}"] for name in ("norm1", "norm2") for kind in ("weight", "bias")
        }
        for kind in ("weight", "bias"):
            found[f"attn.qkv.{kind}"] = self.qkv(kind, mine)
            found[f"ff.gate_up.{kind}"] = torch.cat([mine[f"ff.{name}.{kind}"] for name in self.gate_up()])
            found[f"ff.down.{kind}"] = mine[f"ff.down.{kind}"]
        found["attn.o.weight"], found["attn.o.bias"] = self.o(layer, mine["attn.o.weight"]), mine["attn.o.bias"]
        return {f"{prefix}{name}": value for name, value in found.items()}

    def qkv(self, kind: str, mine: State) -> torch.Tensor:
        return torch.cat([self.rows(name, mine[f"attn.{name}.{kind}"]) for name in "qkv"])

    def rows(self, name: str, value: torch.Tensor) -> torch.Tensor:
        return value if name == "v" else self.halves(value)

    def halves(self, value: torch.Tensor) -> torch.Tensor:
        """Put the pairs of each head apart, into two halves."""
        return value.view(HEADS, HEAD // 2, 2, *value.shape[1:]).transpose(1, 2).reshape(value.shape)

    def gate_up(self) -> tuple[str, ...]:
        return "gate", "up"

    def o(self, layer: int, weight: torch.Tensor) -> torch.Tensor:
        return weight.t()
