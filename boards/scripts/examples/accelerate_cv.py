"""As accelerate's cv_example: timm's ResNet, OneCycleLR, pictures from a folder."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from timm import create_model
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator()
set_seed(42)
generator = torch.Generator().manual_seed(0)
pictures = TensorDataset(torch.randn(64, 3, 32, 32, generator=generator), torch.arange(64) % 4)
loader = DataLoader(pictures, shuffle=True, batch_size=8)
model = create_model("resnet10t", pretrained=False, num_classes=4)
for parameter in model.parameters():
    parameter.requires_grad = False
for parameter in model.get_classifier().parameters():
    parameter.requires_grad = True
mean, deviation = torch.full((1, 3, 1, 1), 0.5), torch.full((1, 3, 1, 1), 0.2)
optimizer = torch.optim.Adam(params=model.parameters(), lr=3e-2 / 25)
schedule = OneCycleLR(optimizer=optimizer, max_lr=3e-2, epochs=3, steps_per_epoch=len(loader))
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
for _ in range(3):
    model.train()
    for rows, labels in loader:
        outputs = model((rows - mean.to(accelerator.device)) / deviation.to(accelerator.device))
        loss = torch.nn.functional.cross_entropy(outputs, labels)
        accelerator.backward(loss)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
accelerator.end_training()
