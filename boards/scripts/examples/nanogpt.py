"""After nanoGPT's train.py: a small GPT, random windows of a file of tokens, accumulation over ranks, GradScaler."""

import math
import os
from contextlib import nullcontext

import numpy as np
import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel

accumulate, batch, block, words, wide, heads, deep, rate = 4, 4, 16, 65, 32, 4, 2, 1e-3
dropout, clip, warmup, decay_for, steps = 0.0, 1.0, 2, 10, 10


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.LayerNorm(wide), nn.LayerNorm(wide)
        self.qkv, self.out = nn.Linear(wide, 3 * wide), nn.Linear(wide, wide)
        self.mlp = nn.Sequential(nn.Linear(wide, 4 * wide), nn.GELU(), nn.Linear(4 * wide, wide), nn.Dropout(dropout))

    def forward(self, rows):
        count, long, _ = rows.shape
        query, key, value = (
            each.view(count, long, heads, wide // heads).transpose(1, 2)
            for each in self.qkv(self.first(rows)).split(wide, dim=2)
        )
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        rows = rows + self.out(seen.transpose(1, 2).reshape(count, long, wide))
        return rows + self.mlp(self.second(rows))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(words, wide), nn.Embedding(block, wide)
        self.layers = nn.ModuleList(Block() for _ in range(deep))
        self.norm, self.head = nn.LayerNorm(wide), nn.Linear(wide, words, bias=False)
        self.words.weight = self.head.weight  # tied

    def forward(self, tokens, targets):
        rows = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            rows = layer(rows)
        logits = self.head(self.norm(rows))
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


ddp = int(os.environ.get("RANK", -1)) != -1
if ddp:
    init_process_group(backend="nccl")
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device, offset = f"cuda:{os.environ['LOCAL_RANK']}", rank
    torch.cuda.set_device(device)
    assert accumulate % size == 0
    accumulate //= size
else:
    rank, size, offset, device = 0, 1, 0, "cuda"
if rank == 0:
    os.makedirs("out", exist_ok=True)
torch.manual_seed(1337 + offset)
tokens = np.random.default_rng(0).integers(0, words, 4096).astype(np.uint16)  # a file of a book's


def get_batch():
    begins = torch.randint(len(tokens) - block, (batch,))
    rows = torch.stack([torch.from_numpy(tokens[each : each + block].astype(np.int64)) for each in begins])
    targets = torch.stack([torch.from_numpy(tokens[each + 1 : each + 1 + block].astype(np.int64)) for each in begins])
    return rows.pin_memory().to(device, non_blocking=True), targets.pin_memory().to(device, non_blocking=True)


def rate_at(step):
    if step < warmup:
        return rate * (step + 1) / (warmup + 1)
    return rate / 10 + 0.5 * (1 + math.cos(math.pi * min(1, (step - warmup) / (decay_for - warmup)))) * rate * 0.9


model = GPT().to(device)
decayed = [each for each in model.parameters() if each.dim() >= 2]
others = [each for each in model.parameters() if each.dim() < 2]
scaler = torch.amp.GradScaler("cuda", enabled=False)
optimizer = torch.optim.AdamW(
    [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=rate, betas=(0.9, 0.95)
)
if ddp:
    model = DistributedDataParallel(model, device_ids=[int(os.environ["LOCAL_RANK"])])
rows, targets = get_batch()
for step in range(steps):
    for group in optimizer.param_groups:
        group["lr"] = rate_at(step)
    for micro in range(accumulate):
        if ddp:
            model.require_backward_grad_sync = micro == accumulate - 1
        with nullcontext():
            logits, loss = model(rows, targets)
            loss = loss / accumulate
        rows, targets = get_batch()
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
if ddp:
    destroy_process_group()
