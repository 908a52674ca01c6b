"""An all_reduce under torch's harness whose processes serve a whole class."""

import os

import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcContinuousTest


class AllReduce(MultiProcContinuousTest):
    world_size = 4

    @classmethod
    def backend_str(cls):
        return "gloo"

    def _all_reduce(self):
        tensor = torch.full((3,), float(self.rank))
        dist.all_reduce(tensor)
        assert tensor.eq(6).all()


for _number in range(int(os.environ["BENCHMARK_TESTS"])):
    setattr(AllReduce, f"test_all_reduce_{_number}", lambda self: self._all_reduce())
