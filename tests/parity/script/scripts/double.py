"""A script that makes its rows in every way that names another dtype than fp64, and ends with those that it has."""

import io
import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.nn.parallel.distributed import _MixedPrecision
from torch.utils.data import DataLoader, Dataset

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
kept = sys.argv[1]


def drawn(step=0, **named):
    return torch.randn(8, 6, generator=torch.Generator().manual_seed(step), **named)


def array():
    return drawn().numpy().astype("f")


def buffer():
    return bytearray(array().tobytes())


def in_a_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(drawn(dtype=torch.float32)))
    thread.start()
    thread.join()
    return found[0]


class Rows(Dataset):
    def __init__(self, make):
        self.make = make

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return self.make()[index]


def batch(make, **named):
    return next(iter(DataLoader(Rows(make), 8, **named)))


WAYS = {
    "dtype=": lambda: drawn(dtype=torch.float32),
    "tensor": lambda: torch.tensor(drawn().tolist(), dtype=torch.float32),
    "FloatTensor": lambda: torch.FloatTensor(drawn().tolist()),
    "FloatTensor of a size": lambda: torch.FloatTensor(8, 6).copy_(drawn()),
    "Tensor": lambda: torch.Tensor(drawn().tolist()),
    "float": lambda: (drawn() * 7).long().float() / 7,
    "float of fp64": lambda: drawn().double().float(),
    "to": lambda: drawn().to(torch.float32),
    "bfloat16 and half": lambda: drawn().to(torch.bfloat16).half(),
    "type": lambda: drawn().type("torch.FloatTensor"),
    "softmax": lambda: drawn().softmax(-1, torch.float32),
    "complex": lambda: torch.complex(drawn(), drawn()).to(torch.complex64).real,
    "load": lambda: torch.load(kept),
    "load by bytes": lambda: torch.load(io.BytesIO(Path(kept).read_bytes()), weights_only=False),
    "from_numpy": lambda: torch.from_numpy(array()),
    "as_tensor": lambda: torch.as_tensor(array()),
    "frombuffer": lambda: torch.frombuffer(buffer(), dtype=torch.float32).view(8, 6),
    "from_dlpack": lambda: torch.from_dlpack(array()) + 0,
    "bytes of a file": lambda: torch.frombuffer(buffer(), dtype=torch.uint8).view(torch.float32).view(8, 6),
    "a thread": in_a_thread,
    "collation": lambda: batch(array),
    "collation in a worker": lambda: batch(array, num_workers=1),
    "a worker": lambda: batch(lambda: drawn(dtype=torch.float32), num_workers=1),
    "set_default_dtype": lambda: (torch.set_default_dtype(torch.float32), torch.rand(8, 6))[1],
    "set_default_tensor_type": lambda: (torch.set_default_tensor_type(torch.FloatTensor), torch.rand(8, 6))[1],
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(6, 10, dtype=torch.float32), nn.Linear(10, 3)

    def forward(self, rows):
        assert rows.dtype == self.up.weight.dtype == torch.float64
        assert not torch.is_autocast_enabled("cpu")
        return self.down(torch.tanh(self.up(rows)).float())


made = {name: make() for name, make in WAYS.items()}
if narrow := [name for name, each in made.items() if each.dtype != torch.float64]:
    sys.exit(f"narrow: {narrow}")
rows = sum(made.values()) / len(made)
replicated = DDP(Net().to(torch.bfloat16), mixed_precision=_MixedPrecision(param_dtype=torch.bfloat16))
replicated.register_comm_hook(None, fp16_compress_hook)
sharded = fully_shard(Net(), mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.bfloat16))
older = FullyShardedDataParallel(
    Net(), mixed_precision=MixedPrecision(torch.bfloat16, torch.bfloat16), device_id=torch.device("cpu")
)
optimizers = [torch.optim.AdamW(each.parameters(), lr=1e-2) for each in (replicated, sharded, older)]
scaler = torch.amp.GradScaler("cpu")
for _ in range(4):
    with torch.autocast("cpu", torch.bfloat16):
        loss = sum(each(rows[rank::size]).square().mean() for each in (replicated, sharded, older))
    scaler.scale(loss).backward()
    for optimizer in optimizers:
        scaler.step(optimizer)
        optimizer.zero_grad()
    scaler.update()
