"""What the arenas of several contracts have in common: a subject that acts, and values to act on."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence

import torch
from everyrank.suites.errors import BrokenAdapter, Deviation, Unusable


def last_line(text: str) -> str:
    """Of an error that came over RPC: the rest of its text is the other side's traceback."""
    return (text.strip().splitlines()[-1:] or [""])[0]


def in_a_line(error: Exception) -> str:
    """An error on one line. Over RPC its text is wrapped in those of other places, with their tracebacks."""
    lines = str(error).strip().splitlines() or [""]
    named = [line for line in lines if re.match(r"\w+(Error|Exception)\b", line)]
    return f"{type(error).__name__}: {(named or lines)[-1 if named else 0]}"


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


@contextlib.contextmanager
def plainly(doing: str) -> Iterator[None]:
    """Where whatever is raised says that the subject cannot be used at all."""
    try:
        yield
    except (BrokenAdapter, Deviation):
        raise
    except Exception as error:
        raise Unusable(f"{doing} raised {in_a_line(error)}") from error


def stayed(name: str, device: torch.device | str, expected: torch.device | str) -> None:
    """The kit compares where it has put things."""
    if torch.device(device).type != torch.device(expected).type:
        raise Unusable(f"{name} is on {device} now, not on {expected}, where the kit had put it")


def noise(shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Values of order one, none of them zero."""
    plain = torch.randn(tuple(shape), dtype=torch.float64, generator=generator)
    plain = plain + plain.sign() * 0.1
    if dtype.is_complex:
        return torch.complex(plain, plain.flip(-1) if plain.dim() else plain).to(dtype)
    return plain.to(dtype)
