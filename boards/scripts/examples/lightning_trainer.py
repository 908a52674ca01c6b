"""As Lightning's first page: an autoencoder as a LightningModule, `Trainer.fit`."""

import os

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Autoencoder(lightning.LightningModule):
    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def training_step(self, batch, index):
        rows, _ = batch
        rows = rows.view(rows.size(0), -1)
        loss = nn.functional.mse_loss(self.decoder(self.encoder(rows)), rows)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


lightning.seed_everything(0)
generator = torch.Generator().manual_seed(0)
data = TensorDataset(torch.rand(128, 1, 6, 6, generator=generator), torch.arange(128) % 10)
loader = DataLoader(data, batch_size=16, shuffle=True)
encoder = nn.Sequential(nn.Linear(36, 16), nn.ReLU(), nn.Linear(16, 3))
decoder = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 36))
trainer = lightning.Trainer(
    max_epochs=2, accelerator="cpu", devices=int(os.environ.get("WORLD_SIZE", 1)), strategy="ddp"
)
trainer.fit(Autoencoder(encoder, decoder), loader)
