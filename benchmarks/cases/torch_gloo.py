"""Twenty tests of a group on gloo, on torch's MultiProcessTestCase."""

import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcessTestCase
from torch.testing._internal.common_utils import instantiate_parametrized_tests, parametrize


@instantiate_parametrized_tests
class AllReduce(MultiProcessTestCase):
    @property
    def world_size(self):
        return 4

    def setUp(self):
        super().setUp()
        self._spawn_processes()

    @parametrize("length", range(1, 21))
    def test_all_reduce(self, length):
        store = dist.FileStore(self.file_name, self.world_size)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.world_size)
        tensor = torch.full((length,), float(self.rank))
        dist.all_reduce(tensor)
        self.assertEqual(tensor, torch.full((length,), 6.0))
