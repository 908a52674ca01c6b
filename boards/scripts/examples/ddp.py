"""As torch's tutorial "Multi GPU training with DDP": a Trainer class, a DistributedSampler, snapshots."""

import os
import sys

import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Made(Dataset):
    def __init__(self, size):
        generator = torch.Generator().manual_seed(0)
        self.rows = [(torch.rand(20, generator=generator), torch.rand(1, generator=generator)) for _ in range(size)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


class Trainer:
    def __init__(self, model, loader, optimizer, snapshot):
        self.rank = int(os.environ["LOCAL_RANK"])
        self.loader, self.optimizer, self.snapshot, self.begins = loader, optimizer, snapshot, 0
        self.model = model.to(self.rank)
        if os.path.exists(snapshot):
            kept = torch.load(snapshot, map_location=f"cuda:{self.rank}")
            self.model.load_state_dict(kept["model"])
            self.begins = kept["epochs"]
        self.model = DistributedDataParallel(self.model, device_ids=[self.rank])

    def step(self, rows, targets):
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(rows), targets)
        loss.backward()
        self.optimizer.step()

    def train(self, epochs):
        for epoch in range(self.begins, epochs):
            self.loader.sampler.set_epoch(epoch)
            for rows, targets in self.loader:
                self.step(rows.to(self.rank), targets.to(self.rank))
            if self.rank == 0:
                torch.save({"model": self.model.module.state_dict(), "epochs": epoch + 1}, self.snapshot)


def main(epochs, batch):
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    init_process_group(backend="nccl")
    torch.manual_seed(0)
    model, rows = nn.Linear(20, 1), Made(256)
    loader = DataLoader(rows, batch_size=batch, pin_memory=True, shuffle=False, sampler=DistributedSampler(rows))
    Trainer(model, loader, torch.optim.SGD(model.parameters(), lr=1e-3), "snapshot.pt").train(epochs)
    destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
