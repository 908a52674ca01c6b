"""A test of parity under ``--mutate``: what is changed are the user's collectives, and none of parity's own."""

from __future__ import annotations

from pathlib import Path

from tests import run_files
from tests.inner import Project

_HEAD = """
    import pytest, torch
    import torch.distributed as dist
    from everyrank.parity import parity
    from torch import nn

    def net():
        return nn.Linear(4, 3)

    def batch(step):
        return torch.randn(8, 4, generator=torch.Generator().manual_seed(step))

    def loss(model, rows):
        return model(rows).square().mean()

    def average(model):
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
"""

_WHOLE = """
    @pytest.mark.world(2)
    def test_it(process_group):
        parity(
            model=net, parallelize=lambda model: model, batch=batch, loss=loss, finish=average, steps=2, split="rows"
        )
"""


def test_what_parity_itself_exchanges_is_not_changed(project: Project) -> None:
    source = Path(project.write("test_inner.py", _HEAD + _WHOLE)).read_text()
    out = project.run("--mutate", "--mutate-budget=600s", "--run-file=out.jsonl").out
    (case,) = run_files.read(project.folder / "out.jsonl").cases
    mutants = case["mutation"]["mutants"]
    line = source.splitlines().index("        dist.all_reduce(parameter.grad)") + 1
    assert {mutant["location"] for mutant in mutants if mutant["way"] != "seed"} == {f"test_inner.py:{line}"}
    assert {mutant["outcome"] for mutant in mutants if mutant["way"] != "seed"} == {"killed"}, out
