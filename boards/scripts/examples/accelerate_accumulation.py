"""As accelerate's example by_feature/gradient_accumulation: `accelerator.accumulate`, a clip at the step."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(gradient_accumulation_steps=2)
set_seed(7)
generator = torch.Generator().manual_seed(0)
data = TensorDataset(torch.randn(128, 12, generator=generator), torch.arange(128) % 3)
loader = DataLoader(data, shuffle=True, batch_size=8)
model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for _ in range(2):
    for rows, labels in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(rows), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
