"""As torch's example of tensor parallelism: two linear layers by columns and rows, the same rows on all ranks."""

import os

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class Toy(nn.Module):
    def __init__(self):
        super().__init__()
        self.in_proj, self.relu, self.out_proj = nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 6)

    def forward(self, rows):
        return self.out_proj(self.relu(self.in_proj(rows)))


mesh = init_device_mesh("cuda", (int(os.environ["WORLD_SIZE"]),))
torch.manual_seed(0)
model = parallelize_module(Toy().to("cuda"), mesh, {"in_proj": ColwiseParallel(), "out_proj": RowwiseParallel()})
optimizer = torch.optim.AdamW(model.parameters(), lr=0.25, foreach=True)
for step in range(10):
    torch.manual_seed(step)  # all ranks need the same rows
    output = model(torch.rand(20, 10, device="cuda"))
    output.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
