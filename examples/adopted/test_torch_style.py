"""Tests as torch writes them, on its private classes. Nothing here knows of everyrank."""

import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase
from torch.testing._internal.common_utils import run_tests


class SumTest(MultiProcessTestCase):
    @property
    def world_size(self):
        return 4

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def test_sum(self):
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)
        total = torch.tensor(float(self.rank))
        dist.all_reduce(total)
        self.assertEqual(total.item(), 6.0)
        dist.destroy_process_group()


if __name__ == "__main__":
    run_tests()
