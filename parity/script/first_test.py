"""A file with a test of `everyrank.parity`, for the model of a script, as far as its run shows it."""

from __future__ import annotations

from pathlib import Path

import torch
from everyrank.parity.script.kept import Facts

#: By the wrapper: what it is imported from, what makes it, and what is to be said of that.
_WRAPPERS = {
    "DistributedDataParallel": ("torch.nn.parallel", "DistributedDataParallel", ""),
    "FullyShardedDataParallel": ("torch.distributed.fsdp", "FullyShardedDataParallel", ""),
    "FSDPModule": ("torch.distributed.fsdp", "fully_shard", "  # and its layers before it, if the script does so"),
}
_UNKNOWN = ("", "", "")


def lines(facts: Facts, script: str, size: int) -> list[str]:
    """Return the lines of the file; three dots stand for what only the user knows."""
    name = facts.modules[0] if facts.modules else "Net"
    home, remark = _home(facts, script)
    package, maker, beside = _WRAPPERS.get(facts.wrappers[0] if facts.wrappers else "", _UNKNOWN)
    optimizer = facts.optimizers[0] if facts.optimizers else "AdamW"
    plain = hasattr(torch.optim, optimizer)
    return [
        "import pytest",
        *(["import torch"] if plain else []),
        "from everyrank.parity import parity",
        *([f"from {package} import {maker}"] if maker else []),
        *([f"from {home} import {name}{remark}"] if home else []),
        "",
        "",
        f"@pytest.mark.world([{size}])",
        "def test_the_ranks_train_as_one(process_group):",
        "    parity(",
        f"        model=lambda: {f'{name}(...),' if home else f'...,  # what makes the {name}{remark}'}",
        f"        parallelize=lambda model: {f'{maker}(model),{beside}' if maker else '...,'}",
        "        batch=lambda step: ...,  # the whole batch of a step",
        "        loss=lambda model, batch: ...,  # the mean over a batch",
        "        optimizer=lambda parameters: "
        + (
            f"torch.optim.{optimizer}(parameters, lr={facts.rate:g}),"
            if plain
            else f"...,  # one process's, for {optimizer} with lr={facts.rate:g}"
        ),
        "    )",
    ]


def _home(facts: Facts, script: str) -> tuple[str, str]:
    """Return from where the model's class can be imported, empty if from nowhere; and what is to be said of that."""
    module = facts.origins[0] if facts.origins else ""
    if not module or module.startswith("torch."):
        return "", ""
    if module != "__main__":
        return module, ""
    module = Path(script).stem if script.endswith(".py") else script
    if not all(part.isidentifier() for part in module.split(".")):
        return "", f" of {script}, whose name cannot be imported"
    return module, '  # which must train only if __name__ == "__main__"'
