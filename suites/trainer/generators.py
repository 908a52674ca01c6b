"""The generators from which models draw in their forwards: a user has one for each part, and goes on with it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

#: Where the generator of each part is, by the number of the part; a part that is not there has not begun.
Generators = dict[int, torch.Tensor]


@contextlib.contextmanager
def generator_of(part: int, generators: Generators) -> Iterator[None]:
    """Let torch's generator be that of a part, and keep where it is afterwards."""
    with torch.random.fork_rng(devices=[]):
        if part in generators:
            torch.default_generator.set_state(generators[part])
        else:
            torch.default_generator.manual_seed(1 + part)
        yield
        generators[part] = torch.default_generator.get_state()


def noisy(x: torch.Tensor) -> torch.Tensor:
    """Return each number times a random one, as dropout does."""
    return x * (0.5 + torch.rand(x.shape, dtype=x.dtype)).to(x.device)
