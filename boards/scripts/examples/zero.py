"""As torch's recipe of ZeroRedundancyOptimizer: many linear layers under DDP, Adam's state over ranks."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(*[nn.Linear(20, 20) for _ in range(6)])
ddp = DistributedDataParallel(model)
optimizer = ZeroRedundancyOptimizer(ddp.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
loss_of = nn.MSELoss()
for _ in range(5):
    outputs = ddp(torch.randn(20, 20))
    labels = torch.randn(20, 20)
    loss_of(outputs, labels).backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
