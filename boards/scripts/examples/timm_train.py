"""As timm's train.py: seeds by rank, `create_model`, `create_loader`, `create_optimizer_v2`, a schedule."""

import argparse
from types import SimpleNamespace

from timm.data import create_loader
from timm.models import create_model
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import init_distributed_device, random_seed
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torchvision.datasets import FakeData


def main(asked):
    where = SimpleNamespace(device=asked.device, dist_backend=None, dist_url="env://")
    device = init_distributed_device(where)
    random_seed(42, where.rank)
    model = create_model(
        asked.model, pretrained=False, num_classes=4, img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2
    )
    model.to(device=device)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
    if where.distributed:
        model = DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)
    data = FakeData(64, (3, 32, 32), 4)
    loader = create_loader(
        data,
        input_size=(3, 32, 32),
        batch_size=asked.batch_size,
        is_training=True,
        no_aug=asked.no_aug,
        num_workers=0,
        distributed=where.distributed,
        device=device,
        use_prefetcher=False,
    )
    schedule, epochs = create_scheduler_v2(optimizer, num_epochs=3, updates_per_epoch=len(loader))
    criterion = nn.CrossEntropyLoss()
    for epoch in range(epochs):
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        model.train()
        for images, labels in loader:
            loss = criterion(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step(epoch + 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="vit_tiny_patch16_224")
    parser.add_argument("-b", "--batch-size", type=int, default=8)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--no-aug", action="store_true")
    main(parser.parse_args())
