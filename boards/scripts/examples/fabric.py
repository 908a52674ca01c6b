"""As lightning-fabric's image classifier: `fabric.setup`, `setup_dataloaders`, `fabric.backward`, a StepLR."""

import os

import torch
from lightning.fabric import Fabric, seed_everything
from torch import nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 8, 3)
        self.up, self.down = nn.Linear(8 * 4 * 4, 16), nn.Linear(16, 10)

    def forward(self, rows):
        rows = nn.functional.relu(self.second(nn.functional.relu(self.first(rows))))
        rows = nn.functional.max_pool2d(rows, 2).flatten(1)
        return self.down(nn.functional.relu(self.up(rows)))


def main():
    fabric = Fabric(accelerator="cpu", devices=int(os.environ.get("WORLD_SIZE", 1)), strategy="ddp")
    fabric.launch()
    seed_everything(1)
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.rand(128, 1, 12, 12, generator=generator), torch.arange(128) % 10)
    loader = fabric.setup_dataloaders(DataLoader(data, batch_size=16, shuffle=True))
    model = Net()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    model, optimizer = fabric.setup(model, optimizer)
    schedule = StepLR(optimizer, step_size=1, gamma=0.7)
    for _ in range(3):
        model.train()
        for rows, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.nll_loss(nn.functional.log_softmax(model(rows), dim=1), labels)
            fabric.backward(loss)
            optimizer.step()
        schedule.step()


if __name__ == "__main__":
    main()
