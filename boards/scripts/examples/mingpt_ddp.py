"""As torch's example minGPT-ddp: a trainer class, DDP, DistributedSampler, AdamW in two groups, a clip, snapshots."""

import argparse
import os

import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Characters(Dataset):
    def __init__(self, count, block):
        self.tokens = torch.randint(0, 30, (count + block,), generator=torch.Generator().manual_seed(1))
        self.block = block

    def __len__(self):
        return len(self.tokens) - self.block

    def __getitem__(self, index):
        chunk = self.tokens[index : index + self.block + 1]
        return chunk[:-1], chunk[1:]


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = nn.MultiheadAttention(width, heads, dropout=dropout, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, rows):
        normed = self.ln1(rows)
        mask = nn.Transformer.generate_square_subsequent_mask(rows.shape[1])
        rows = rows + self.attn(normed, normed, normed, attn_mask=mask, need_weights=False)[0]
        return rows + self.mlp(self.ln2(rows))


class GPT(nn.Module):
    def __init__(self, vocabulary, block, width, heads, layers, dropout):
        super().__init__()
        self.tok_emb, self.drop = nn.Embedding(vocabulary, width), nn.Dropout(dropout)
        self.pos_emb = nn.Parameter(torch.zeros(1, block, width))
        self.blocks = nn.Sequential(*[Block(width, heads, dropout) for _ in range(layers)])
        self.ln_f, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens, targets):
        rows = self.blocks(self.drop(self.tok_emb(tokens) + self.pos_emb[:, : tokens.shape[1]]))
        logits = self.head(self.ln_f(rows))
        return logits, nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))

    def optimizer(self, rate, decay):
        matrices = [each for each in self.parameters() if each.dim() > 1]
        others = [each for each in self.parameters() if each.dim() <= 1]
        groups = [{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95))


class Trainer:
    def __init__(self, asked, model, optimizer, data):
        self.rank, self.asked, self.optimizer = int(os.environ["LOCAL_RANK"]), asked, optimizer
        self.loader = DataLoader(data, asked.batch_size, shuffle=False, sampler=DistributedSampler(data))
        self.first = 0
        if os.path.exists(asked.snapshot):
            kept = torch.load(asked.snapshot, map_location="cpu")
            model.load_state_dict(kept["model"])
            optimizer.load_state_dict(kept["optimizer"])
            self.first = kept["epoch"]
        self.model = DistributedDataParallel(model)

    def train(self):
        for epoch in range(self.first, self.asked.max_epochs):
            self.loader.sampler.set_epoch(epoch)
            for tokens, targets in self.loader:
                self.model.train()
                _, loss = self.model(tokens, targets)
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.asked.grad_norm_clip)
                self.optimizer.step()
            if self.rank == 0:
                kept = {"model": self.model.module.state_dict(), "optimizer": self.optimizer.state_dict()}
                torch.save(kept | {"epoch": epoch + 1}, self.asked.snapshot)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--max_epochs", type=int, default=3)
    parser.add_argument("--grad_norm_clip", type=float, default=1.0)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--snapshot", default="gpt_snapshot.pt")
    asked = parser.parse_args()
    init_process_group("gloo")
    torch.manual_seed(0)
    gpt = GPT(30, 16, 16, 2, 2, asked.dropout)
    Trainer(asked, gpt, gpt.optimizer(3e-4, 0.1), Characters(64, 16)).train()
    destroy_process_group()
