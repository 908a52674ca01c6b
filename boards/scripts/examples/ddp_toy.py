"""As torch's tutorial "Getting started with DDP": a toy, rows that each rank draws, one step."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Toy(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.relu, self.down = nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 5)

    def forward(self, rows):
        return self.down(self.relu(self.up(rows)))


def main():
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    device = rank % torch.accelerator.device_count() if torch.accelerator.is_available() else "cpu"
    model = DistributedDataParallel(Toy().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    optimizer.zero_grad()
    outputs = model(torch.randn(20, 10))
    nn.MSELoss()(outputs, torch.randn(20, 5).to(device)).backward()
    optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
