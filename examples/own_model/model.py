"""A model, and a way to cut it over ranks: as Megatron cuts it, by columns and then by rows."""

import torch
import torch.distributed as dist
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.blocks(x))


class Copied(torch.autograd.Function):
    """Forward, all ranks have the same; backward, their gradients are summed."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient)
        return gradient


class Summed(torch.autograd.Function):
    """Forward, the ranks' parts are summed; backward, each gets the same."""

    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class CutBlock(nn.Module):
    """This rank's columns of ``up``, and its rows of ``down``."""

    def __init__(self, whole):
        super().__init__()
        rank, size = dist.get_rank(), dist.get_world_size()
        self.up = nn.Linear(8, 16 // size)
        self.down = nn.Linear(16 // size, 8)
        with torch.no_grad():
            self.up.weight.copy_(whole.up.weight.chunk(size)[rank])
            self.up.bias.copy_(whole.up.bias.chunk(size)[rank])
            self.down.weight.copy_(whole.down.weight.chunk(size, dim=1)[rank])
            self.down.bias.copy_(whole.down.bias)

    def forward(self, x):
        part = torch.tanh(self.up(Copied.apply(x))) @ self.down.weight.t()
        return x + Summed.apply(part) + self.down.bias  # once, and not once a rank


def cut(model):
    model.blocks = nn.Sequential(*map(CutBlock, model.blocks))
    return model
