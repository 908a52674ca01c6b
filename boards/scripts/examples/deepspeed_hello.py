"""As DeepSpeed's hello world: a config as a dict, `initialize`, `engine.backward`, `engine.step`."""

import argparse
import os

import deepspeed
import torch
from torch import nn
from torch.utils.data import TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, rows, labels):
        return nn.functional.cross_entropy(self.layers(rows), labels)


def main(asked):
    deepspeed.init_distributed()
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(128, 16, generator=generator), torch.arange(128) % 4)
    config = {
        "train_batch_size": 16,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "torch_adam": True}},
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": asked.stage},
    }
    model = Net()
    engine, _, loader, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), training_data=data, config=config
    )
    for _ in range(2):
        for rows, labels in loader:
            loss = engine(rows.to(engine.device), labels.to(engine.device))
            engine.backward(loss)
            engine.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", type=int, default=1)
    parser.add_argument("--local_rank", type=int, default=int(os.environ.get("LOCAL_RANK", 0)))
    main(parser.parse_args())
