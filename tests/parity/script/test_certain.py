"""A fault that neither batch norm nor dropout explains is named beside them; what is right with them is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity.script.test_ways import LOOP, _run

pytestmark = pytest.mark.group("clusters")

NORM, DROP = "net(nn.BatchNorm1d(10))", "net(nn.Dropout(.5))"
SGD = "\noptimizer = torch.optim.SGD(model.parameters(), lr=.1)"
LOSS = "model(batch(step)).square().mean().backward()"
NO_SYNC = LOOP.replace(LOSS, f"with model.no_sync() if size > 1 else contextlib.nullcontext(): {LOSS}")
SCHEDULE = "\nschedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, .5)"
STEPPED = LOOP.replace("optimizer.step()", "optimizer.step()\n    for _ in range(size): schedule.step()")
SIDE = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.main, self.side = net(nn.BatchNorm1d(10)), nn.Linear(6, 3)
    def forward(self, rows):
        return self.main(rows) + (self.side(rows) if size == 1 else 0)
model = DDP(Net(), find_unused_parameters=True)"""
TWICE = """
from torch.utils.data import DataLoader, DistributedSampler
sampler = DistributedSampler(torch.randn(8, 6))
loader = DataLoader(sampler.dataset, 8 // size, sampler=sampler)
def batch(step): return next(iter(loader))"""
#: The last bias has the same gradient on all ranks but for rounding, which some processors do alike.
OWN = ", as {} others of its kind"

#: By the mistake: the script, its first line, and how the second goes on.
FAULTS = {
    "no DDP beside batch norm": (
        f"model = {NORM}{SGD}{LOOP}",
        f"step 1: gradient of `0.weight` is each rank's own when the optimizer steps (train.py:21){OWN}",
        "each rank's batch norm (`2`)",
    ),
    "no DDP beside dropout": (
        f"model = {DROP}{SGD}{LOOP}",
        "step 1: gradient of `0.weight` is each rank's own when the optimizer steps (train.py:21), as 3 others of "
        "its kind",
        "the model draws random numbers",
    ),
    "no_sync to the end": (
        f"import contextlib\nmodel = DDP({NORM}){SGD}{NO_SYNC}",
        f"step 1: gradient of `0.weight` is each rank's own when the optimizer steps (train.py:22){OWN}",
        "each rank's batch norm (`2`)",
    ),
    "a rate for each rank": (
        f"model = DDP({NORM})\noptimizer = torch.optim.SGD(model.parameters(), lr=.1 * (1 + rank / 10)){LOOP}",
        "step 1: learning rate is 0.11 instead of 0.1 on rank 1 (train.py:21)",
        "each rank's batch norm (`2`)",
    ),
    "other weights after the step": (
        f"model = DDP({NORM}){SGD.replace(', lr', ', momentum=.9, lr')}"
        + LOOP.replace("optimizer.step()", "model.module[0].bias.grad += rank / 10\n    optimizer.step()"),
        "step 1: gradient of `0.bias` is each rank's own when the optimizer steps (train.py:22)",
        "each rank's batch norm (`2`)",
    ),
    "a rate times the ranks": (
        f"model = DDP({DROP}){SGD} * size{LOOP}".replace("lr=.1) * size", "lr=.1 * size)"),
        "step 1: learning rate is 0.2 instead of 0.1 on ranks 0 and 1 (train.py:21)",
        "the model draws random numbers",
    ),
    "a schedule that steps for each rank": (
        f"model = DDP({NORM}){SGD}{SCHEDULE}{STEPPED}",
        "step 2: learning rate is 0.025 instead of 0.05 on ranks 0 and 1 (train.py:22)",
        "each rank's batch norm (`2`)",
    ),
    "a part that more ranks leave out": (
        f"{SIDE}{SGD}{LOOP}",
        "step 1: gradient of `side.bias` is missing on ranks 0 and 1, in all steps (train.py:28), as 1 other of its "
        "kind",
        "each rank's batch norm (`main.2`)",
    ),
    "no epoch for the sampler": (
        f"{TWICE}\nmodel = DDP({NORM}){SGD}{LOOP}",
        "the DistributedSampler begins a second epoch in the order of the first (train.py:20): call "
        "sampler.set_epoch(epoch) before each",
        "each rank's batch norm (`2`)",
    ),
}


@pytest.mark.parametrize("mistake", FAULTS)
def test_a_fault_is_named_beside_what_parts_by_design(
    mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, first, second = FAULTS[mistake]
    code, text = _run(tmp_path, monkeypatch, script)
    found = text.splitlines()
    assert code == 1, text
    assert found[0] in [first.format(others) for others in (4, 5)], text
    assert found[1].startswith(f"  the rest cannot be compared: {second}"), text


#: With a norm or a dropout: right, and to be called neither the same nor wrong.
RIGHT = {
    "weights that are averaged after each step": f"model = {NORM}{SGD}"
    + LOOP
    + "    for each in model.parameters():\n        dist.all_reduce(each.data); each.data /= size\n",
    "a schedule that goes by the loss": f"model = DDP({NORM}){SGD}\n"
    "schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)"
    + LOOP
    + "    schedule.step(1 if size == 1 else step + 1)\n",
    "a rate that goes by the gradients": f"model = DDP({NORM}){SGD}"
    + LOOP.replace(
        "optimizer.step()",
        "optimizer.param_groups[0]['lr'] = float(model.module[0].weight.grad.norm())\n    optimizer.step()",
    ),
    "layers that are left out at random": SIDE.replace("size == 1", "torch.rand(()) < 2 - size") + SGD + LOOP,
    "parts of the optimizer's work": f"model = DDP({NORM})\n"
    f"optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=.01){LOOP}",
    "shards": "model = net(nn.BatchNorm1d(10))\nfor layer in (model[0], model[3], model): fully_shard(layer)"
    f"{SGD}{LOOP}",
}


@pytest.mark.parametrize("way", RIGHT)
def test_what_is_right_beside_a_norm_or_a_dropout_is_not_called_wrong(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, text = _run(tmp_path, monkeypatch, RIGHT[way])
    assert code == 2, text
    assert text.splitlines()[0].endswith("for this run. What parts first:"), text
