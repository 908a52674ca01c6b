"""A training script as people write it, with one mistake if it is named."""

import contextlib
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

FAULT = sys.argv[1] if len(sys.argv) > 1 else "none"
ROWS, PARTS = 32, 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 4)
        if FAULT == "buffers-apart":
            self.register_buffer("mean", torch.zeros(8))

    def forward(self, rows):
        if FAULT == "buffers-apart":
            self.mean.mul_(0.9).add_(rows.mean(0), alpha=0.1)
        return self.down(torch.relu(self.up(rows)))


def reduce(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(ROWS, 8), torch.arange(ROWS) % 4)
    sampler = None if FAULT == "same-rows" else DistributedSampler(data)
    loader = DataLoader(data, batch_size=16 // size, sampler=sampler)
    torch.manual_seed(rank if FAULT == "seed-by-rank" else 0)
    net = Net()
    by_hand = FAULT in ("not-averaged", "clip-before-reduce", "seed-by-rank")
    model = net if by_hand else DistributedDataParallel(net, broadcast_buffers=FAULT != "buffers-apart")
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    if FAULT == "state-not-loaded":
        kept = torch.load(os.environ["CHECKPOINT"])
        net.load_state_dict(kept["model"])
        if rank == 0:
            optimizer.load_state_dict(kept["optimizer"])
    for epoch in range(10):
        if sampler is not None and FAULT != "no-set-epoch":
            sampler.set_epoch(epoch)
        for rows, labels in loader:
            optimizer.zero_grad()
            for part in range(PARTS):
                late = part < PARTS - 1 or FAULT == "never-syncs"
                with model.no_sync() if late and not by_hand else contextlib.nullcontext():
                    loss = nn.functional.cross_entropy(model(rows[part::PARTS]), labels[part::PARTS]) / PARTS
                    if FAULT == "divided-twice":
                        loss = loss / size
                    loss.backward()
            if FAULT == "seed-by-rank":
                reduce(net)
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            if FAULT == "clip-before-reduce":
                reduce(net)
            optimizer.step()
            for _ in range(size if FAULT == "scheduler-by-rank" else 1):
                scheduler.step()


main()
