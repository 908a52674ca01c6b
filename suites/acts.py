"""What the arenas of several contracts have in common: a subject that acts, and values to act on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import torch
from everyrank.suites.errors import BrokenAdapter, Deviation


def last_line(text: str) -> str:
    """Of an error that came over RPC: the rest of its text is the other side's traceback."""
    return (text.strip().splitlines()[-1:] or [""])[0]


def first_line(text: str) -> str:
    return (text.strip().splitlines()[:1] or [""])[0]


@contextlib.contextmanager
def subject_acts(told: Callable[[str], str] = last_line) -> Iterator[None]:
    """Where a subject has no reason to raise. ``told`` is how much of an error's text is told."""
    try:
        yield
    except (BrokenAdapter, Deviation):
        raise
    except Exception as error:
        raise Deviation(f"raised {type(error).__name__}: {told(str(error))}") from error


def noise(shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Values of order one, none of them zero."""
    plain = torch.randn(tuple(shape), dtype=torch.float64, generator=generator)
    plain = plain + plain.sign() * 0.1
    if dtype.is_complex:
        return torch.complex(plain, plain.flip(-1) if plain.dim() else plain).to(dtype)
    return plain.to(dtype)
