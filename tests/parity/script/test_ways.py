"""Honest scripts, each parallel in another way, are the same training; with one mistake they are not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from everyrank.parity.script.rows import hashes

from tests.parity.script.test_faults import printed
from tests.parity.script.test_first_test import imported

pytestmark = pytest.mark.group("clusters")

#: It begins as datasets and transformers do: they ask whether torch is there.
BEGIN = """import importlib.util; importlib.util.find_spec("torch")
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
def batch(step):
    rows = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
    return rows[rank::size]
def net(*between):
    return nn.Sequential(nn.Linear(6, 10), nn.GELU(), *between, nn.Linear(10, 3))
"""
LOOP = """
for step in range(4):
    optimizer.zero_grad()
    model(batch(step)).square().mean().backward()
    optimizer.step()
"""
SHARDS = """
model = net()
for layer in (model[0], model[2]):
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
"""
WAYS = {
    "fsdp2": SHARDS
    + LOOP.replace(
        "    optimizer.step()", "    nn.utils.clip_grad_norm_(model.parameters(), .1)\n    optimizer.step()"
    ),
    "zero": "model = DDP(net())\noptimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-2)"
    + LOOP,
    "scaler": "model = DDP(net())\noptimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=.9)\n"
    "scaler = torch.amp.GradScaler('cpu')"
    + LOOP.replace("model(batch(step)).square().mean()", "scaler.scale(model(batch(step)).square().mean())").replace(
        "optimizer.step()", "scaler.step(optimizer)\n    scaler.update()"
    ),
    "fsdp2 in bfloat16": SHARDS.replace(
        "fully_shard(", "fully_shard(mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32), module="
    ).replace("lr=1e-2", "lr=1e-1")
    + LOOP,
    "autocast inside of the model": "class Net(nn.Sequential):\n    def forward(self, rows):\n"
    "        with torch.autocast('cpu', torch.bfloat16): return super().forward(rows)\n"
    "model = DDP(Net(*net()))\noptimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)" + LOOP,
    "pipeline": """
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(6, 10), nn.Linear(10, 3)
    def forward(self, rows):
        rows = self.up(rows) if self.up is not None else rows
        return self.down(rows) if self.down is not None else rows
model = Net()
if size > 1:
    setattr(model, "up" if rank else "down", None)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
stage = PipelineStage(model, rank, size, torch.device("cpu"))
schedule = ScheduleGPipe(stage, 2, loss_fn=lambda rows, target: (rows - target).square().mean())
for step in range(4):
    rows = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
    optimizer.zero_grad()
    schedule.step(*([] if rank else [rows]), **({"target": rows[:, :3]} if rank == size - 1 else {}))
    optimizer.step()
""",
    "two optimizers": """
one, two = DDP(net()), DDP(net())
first, second = torch.optim.SGD(one.parameters(), lr=.1), torch.optim.Adam(two.parameters(), lr=.01)
for step in range(4):
    first.zero_grad(); second.zero_grad()
    (one(batch(step)) + two(batch(step))).square().mean().backward()
    first.step(); second.step()
""",
}


def _run(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str, *options: str) -> tuple[int, str]:
    monkeypatch.chdir(folder)
    (folder / "train.py").write_text(BEGIN + script)
    code, text = printed(*options, "train.py")
    return code, text.removeprefix("everyrank parity: train.py, 2 ranks and one rank: ")


@pytest.mark.parametrize("way", WAYS)
def test_an_honest_way_is_the_same_training(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, text = _run(tmp_path, monkeypatch, WAYS[way])
    assert (code, text.partition(" (")[0]) == (0, "the same training, in 3 steps"), text


@pytest.mark.smoke
def test_shards_are_put_together_and_a_factor_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, text = _run(tmp_path, monkeypatch, SHARDS + LOOP.replace(".mean()", ".mean().div(size)"))
    first = (
        "step 1: gradient of `0.weight` is 1/2 of one rank's on ranks 0 and 1: the number of ranks (train.py:26), "
    )
    assert (code, text[: len(first)]) == (1, first), text
    assert "the loss (train.py:25) is 1/2 of one rank's" in text, text
    test = text.partition("to begin with:\n\n")[2].partition("\n\n  ")[0]
    assert "parallelize=lambda model: fully_shard(model)" in test, text
    assert "# what makes the Sequential" in test, text
    imported(test, tmp_path)


@pytest.mark.parametrize(
    ("between", "sentence"),
    [
        ("nn.Dropout(.5)", "the model draws random numbers in its forward, and each rank its own"),
        ("nn.BatchNorm1d(10)", "each rank's batch norm (`2`) normalizes by its own rows, by design"),
    ],
)
def test_what_parts_by_design_is_named(
    between: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"model = DDP(net({between}))\noptimizer = torch.optim.SGD(model.parameters(), lr=.1)" + LOOP
    code, text = _run(tmp_path, monkeypatch, script)
    assert (code, text[: len(sentence)]) == (2, sentence), text


def test_a_sampler_that_is_gone_through_twice_is_no_fault_unless_twice_to_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = """
from torch.utils.data import DataLoader, DistributedSampler
rows = torch.randn(16, 6)
sampler = DistributedSampler(rows)
loader = DataLoader(rows, 8 // size, sampler=sampler)
held = DataLoader(rows[:8], 4, sampler=DistributedSampler(rows[:8]))
next(iter(loader))
model = DDP(net())
optimizer = torch.optim.SGD(model.parameters(), lr=.1)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for mine in loader:
        optimizer.zero_grad()
        model(mine).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            for mine in held:
                model(mine)
"""
    code, text = _run(tmp_path, monkeypatch, script)
    assert (code, text.partition(" (")[0]) == (0, "the same training, in 3 steps"), text
    code, text = _run(tmp_path, monkeypatch, script.replace("    sampler.set_epoch(epoch)\n", ""))
    sentence = "the DistributedSampler begins a second epoch in the order of the first (train.py:26): call"
    assert (code, text[: len(sentence)]) == (1, sentence), text


#: By the option: loaders that a framework makes of a user's, as accelerate (whole batches in turn) and Lightning do.
FRAMEWORKS = {
    "--same-data": """
class Shard:
    def __init__(self, batch_sampler):
        self.batch_sampler, self.num_processes, self.process_index = batch_sampler, size, rank
    def __iter__(self):
        for number, batch in enumerate(self.batch_sampler):
            if number % self.num_processes == self.process_index:
                yield batch
    def __len__(self):
        return 4
loader = DataLoader(rows, batch_sampler=Shard(DataLoader(rows, 8, shuffle=True).batch_sampler))
""",
    "--global-batch": """
mine = DataLoader(rows, 8, shuffle=True)
loader = DataLoader(mine.dataset, batch_size=mine.batch_size, sampler=DistributedSampler(rows, shuffle=False))
""",
}


@pytest.mark.parametrize("option", FRAMEWORKS)
def test_an_option_reaches_a_loader_that_a_framework_makes(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "from torch.utils.data import DataLoader, DistributedSampler\nrows = torch.randn(32, 6)"
    script += f"\nif rank: torch.rand(1)\n{FRAMEWORKS[option]}\nloader = iter(loader)\nmodel = DDP(net())\n"
    script += "optimizer = torch.optim.SGD(model.parameters(), lr=.1)"
    script += LOOP.replace("range(4)", "range(3)").replace("batch(step)", "next(loader)")
    code, text = _run(tmp_path, monkeypatch, script, option)
    assert (code, text.partition(" (")[0]) == (0, "the same training, in 3 steps"), text


def test_an_option_that_does_not_reach_a_loader_is_not_named_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As SentenceTransformerTrainer's, whose batches are its own sampler's."""
    script = "from torch.utils.data import DataLoader, BatchSampler\nrows = torch.randn(32, 6)\n"
    script += "batches = BatchSampler(range(rank, 32, size), 4, True)\n"
    script += "loader = iter(DataLoader(rows, batch_sampler=batches))\nmodel = DDP(net())\n"
    script += "optimizer = torch.optim.SGD(model.parameters(), lr=.1)" + LOOP.replace("batch(step)", "next(loader)")
    code, text = _run(tmp_path, monkeypatch, script, "--global-batch")
    lines = text.splitlines()
    assert (code, lines[1:3]) == (
        2,
        [
            "  --same-data gives each rank its rows of one rank's batches",
            "  --global-batch divides no loader with a batch_sampler (train.py:19)",
        ],
    ), text


def test_a_row_has_no_padding() -> None:
    tokens, longer = torch.tensor([[5, 6, 0], [7, 8, 9]]), torch.tensor([[5, 6, 0, 0], [7, 8, 9, 0]])
    short, long = (
        hashes(((), {"input_ids": each, "attention_mask": each != 0, "labels": torch.tensor([1, 0])}))
        for each in (tokens, longer)
    )
    assert short == long
    assert len(set(short)) == 2
    assert hashes(((tokens,), {})) != hashes(((longer,), {}))
