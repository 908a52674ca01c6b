"""How ranks, dtypes and indices are written in the text of a pattern."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def ranks_text(ranks: Sequence[int]) -> str:
    """Return ranks as people write them."""
    names = [str(rank) for rank in sorted(ranks)]
    return f"rank {names[0]}" if len(names) == 1 else f"ranks {', '.join(names[:-1])} and {names[-1]}"


def short(dtype: torch.dtype) -> str:
    """Return a dtype as people write it."""
    name = str(dtype).removeprefix("torch.")
    return {"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}.get(name, name)


def index_text(flat: int, shape: torch.Size) -> str:
    """Return the index of an element of a tensor."""
    return str([int(index) for index in torch.unravel_index(torch.tensor(flat), shape)])
