"""As torch's example of FSDP2: a small transformer, each layer and the whole sharded, AdamW, a clip."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor


class Block(nn.Module):
    def __init__(self, wide, heads):
        super().__init__()
        self.attention_norm, self.norm = nn.LayerNorm(wide), nn.LayerNorm(wide)
        self.attention = nn.MultiheadAttention(wide, heads, batch_first=True)
        self.up, self.down = nn.Linear(wide, 4 * wide), nn.Linear(4 * wide, wide)

    def forward(self, rows):
        normed = self.attention_norm(rows)
        rows = rows + self.attention(normed, normed, normed, need_weights=False)[0]
        return rows + self.down(nn.functional.gelu(self.up(self.norm(rows))))


class Transformer(nn.Module):
    def __init__(self, words=64, wide=16, heads=4, deep=3):
        super().__init__()
        self.words = nn.Embedding(words, wide)
        self.layers = nn.ModuleList(Block(wide, heads) for _ in range(deep))
        self.norm, self.head = nn.LayerNorm(wide), nn.Linear(wide, words, bias=False)

    def forward(self, tokens):
        rows = self.words(tokens)
        for layer in self.layers:
            rows = layer(rows)
        return self.head(self.norm(rows))


def main(asked):
    dist.init_process_group("nccl")
    torch.manual_seed(0)
    model = Transformer()
    policy = {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)} if asked.mixed_precision else {}
    for layer in model.layers:
        fully_shard(layer, **policy)
    fully_shard(model, **policy)
    assert all(isinstance(each, DTensor) for each in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(10):
        tokens = torch.randint(0, 64, (32, 8), generator=torch.Generator().manual_seed(step))
        mine = tokens.chunk(dist.get_world_size())[dist.get_rank()]
        logits = model(mine)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1).float(), mine.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--mixed-precision", action="store_true")
    main(parser.parse_args())
