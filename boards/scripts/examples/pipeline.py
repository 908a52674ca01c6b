"""As torch's tutorial of pipeline parallelism: a transformer whose layers are cut by hand, GPipe, microbatches."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe


class Transformer(nn.Module):
    def __init__(self, words=50, wide=16, deep=4):
        super().__init__()
        self.words = nn.Embedding(words, wide)
        self.layers = nn.ModuleDict(
            {str(number): nn.Sequential(nn.Linear(wide, wide), nn.GELU()) for number in range(deep)}
        )
        self.norm, self.output = nn.LayerNorm(wide), nn.Linear(wide, words)

    def forward(self, rows):
        rows = self.words(rows) if self.words is not None else rows
        for layer in self.layers.values():
            rows = layer(rows)
        rows = self.norm(rows) if self.norm is not None else rows
        return self.output(rows) if self.output is not None else rows


def cut(model, stage, stages):
    """Leave the layers of a stage."""
    share = len(model.layers) // stages
    for number in range(len(model.layers)):
        if number // share != stage:
            del model.layers[str(number)]
    if stage:
        model.words = None
    if stage < stages - 1:
        model.norm = model.output = None
    return model


def loss_of(output, target):
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group()
torch.manual_seed(0)
model = cut(Transformer(), rank, size)
stage = PipelineStage(model, rank, size, torch.device("cpu"))
schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=loss_of)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    torch.manual_seed(step)
    tokens, targets = torch.randint(0, 50, (8, 12)), torch.randint(0, 50, (8, 12))
    optimizer.zero_grad()
    if size == 1:
        schedule.step(tokens, target=targets)
    elif rank == 0:
        schedule.step(tokens)
    elif rank == size - 1:
        schedule.step(target=targets)
    else:
        schedule.step()
    optimizer.step()
dist.destroy_process_group()
