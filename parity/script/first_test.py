"""The lines of a test with `everyrank.parity`, for the model of a script, as far as its run shows them."""

from __future__ import annotations

from pathlib import Path

from everyrank.parity.script.kept import Facts

_WRAPPERS = {
    "DistributedDataParallel": "DistributedDataParallel(model)",
    "FullyShardedDataParallel": "FullyShardedDataParallel(model)",
}


def lines(facts: Facts, script: str, size: int) -> list[str]:
    """Return the lines; three dots stand for what only the user knows."""
    name = facts.modules[0] if facts.modules else "Net"
    module = facts.origins[0] if facts.origins else "__main__"
    origin = Path(script).stem if module == "__main__" else module
    own = not module.startswith("torch.")
    wrapper = _WRAPPERS.get(facts.wrappers[0] if facts.wrappers else "", "...")
    optimizer = facts.optimizers[0] if facts.optimizers else "AdamW"
    return [
        "  a test that compares each output and gradient with one process, in fp64, to begin with:",
        f"    from {origin} import {name}" if own else f"    from {origin} import ...  # what makes the {name}",
        "",
        f"    @pytest.mark.world({size})",
        "    def test_the_ranks_train_as_one(process_group):",
        "        everyrank.parity.parity(",
        f"            model=lambda: {name if own else '...'}({'...' if own else ''}),".replace("...()", "..."),
        f"            parallelize=lambda model: {wrapper},",
        "            batch=lambda step: ...,  # the whole batch of a step",
        "            loss=lambda model, batch: ...,",
        f"            optimizer=lambda parameters: torch.optim.{optimizer}(parameters, lr={facts.rate:g}),",
        "        )",
    ]
