"""As torch's example of sequence parallelism: rows are cut over ranks, gathered by columns, scattered by rows."""

import os

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


class Toy(nn.Module):
    def __init__(self):
        super().__init__()
        self.in_proj, self.relu, self.out_proj = nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 5)

    def forward(self, rows):
        return self.out_proj(self.relu(self.in_proj(rows)))


size = int(os.environ["WORLD_SIZE"])
mesh = init_device_mesh("cuda", (size,))
torch.manual_seed(0)
plan = {
    "in_proj": ColwiseParallel(input_layouts=Shard(0)),
    "out_proj": RowwiseParallel(output_layouts=Shard(0)),
}
model = parallelize_module(Toy().to("cuda"), mesh, plan)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.25, foreach=True)
for step in range(10):
    torch.manual_seed(step)
    rows = torch.rand(8, 10, device="cuda").chunk(size)[mesh.get_local_rank()]
    model(rows).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
