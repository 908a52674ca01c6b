"""As torchvision's references/classification/train.py: ResNet, RandomResizedCrop, RepeatedAugment off, EMA off."""

import argparse
import os

import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, RandomSampler
from torchvision.transforms import v2


def datasets(count):
    cut = v2.Compose([v2.RandomResizedCrop(32), v2.RandomHorizontalFlip(), v2.ToDtype(torch.float32, scale=True)])
    return torchvision.datasets.FakeData(count, (3, 40, 40), 4, transform=v2.Compose([v2.PILToTensor(), cut]))


def main(asked):
    distributed = "RANK" in os.environ and "WORLD_SIZE" in os.environ
    if distributed:
        gpu = int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(gpu)
        torch.distributed.init_process_group(backend="nccl", init_method="env://")
        torch.distributed.barrier()
    torch.manual_seed(asked.seed)
    data = datasets(64)
    sampler = DistributedSampler(data) if distributed else RandomSampler(data)
    loader = DataLoader(
        data, batch_size=asked.batch_size, sampler=sampler, num_workers=asked.workers, pin_memory=True
    )
    device = torch.device(asked.device)
    model = torchvision.models.get_model("resnet18", weights=None, num_classes=4)
    model.to(device)
    if distributed and asked.sync_bn:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1)
    if distributed:
        model = nn.parallel.DistributedDataParallel(model, device_ids=[gpu])
    for epoch in range(2):
        if distributed:
            sampler.set_epoch(epoch)
        model.train()
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            loss = criterion(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        schedule.step()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda")
    parser.add_argument("-b", "--batch-size", default=16, type=int)
    parser.add_argument("-j", "--workers", default=0, type=int)
    parser.add_argument("--seed", default=0, type=int)
    parser.add_argument("--sync-bn", action="store_true")
    main(parser.parse_args())
