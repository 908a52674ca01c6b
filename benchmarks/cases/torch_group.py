"""An all_reduce under torch's own harness, with new processes for each test."""

import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase


class AllReduce(MultiProcessTestCase):
    @property
    def world_size(self):
        return 4

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def test_all_reduce(self):
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)
        tensor = torch.full((3,), float(self.rank))
        dist.all_reduce(tensor)
        assert tensor.eq(6).all()
        dist.destroy_process_group()
