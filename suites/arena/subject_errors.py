"""Shared by the arenas of several contracts: errors that a subject raises, its devices, and random values."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence

import torch
from everyrank.suites.errors import BrokenAdapter, Deviation, Unusable, kinds


def in_a_line(error: Exception) -> str:
    """Describe an error on one line. Over RPC its text is wrapped in the texts of other ranks, with tracebacks."""
    kind = type(error).__name__
    lines = str(error).strip().splitlines() or [""]
    if isinstance(error, KeyError) and "\n" in str(error.args[0] if error.args else ""):
        lines = str(error.args[0]).splitlines()  # str() puts all lines of a KeyError on one
    named = [line for line in lines if re.match(rf"([\w.]*(Error|Exception)|{re.escape(kind)})\b", line)]
    line = named[-1] if named else lines[0]
    return line if line.startswith(kind) else f"{kind}: {line}"


class subject_acts:
    """Turn what the subject raises into a Deviation: it has no reason to raise here.

    This is a class because a generator would add frames of contextlib to the traceback.
    """

    def __init__(self, doing: str = "") -> None:
        self.doing = doing

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        __tracebackhide__ = True
        if isinstance(error, Exception) and not isinstance(error, (BrokenAdapter, Deviation)):
            raise Deviation(f"{self.doing} raised {in_a_line(error)}".lstrip(), kinds(error)) from error


@contextlib.contextmanager
def plainly(doing: str) -> Iterator[None]:
    """Turn what is raised into Unusable: this use is so plain that the subject cannot be used at all."""
    try:
        yield
    except (BrokenAdapter, Deviation):
        raise
    except Exception as error:
        raise Unusable(f"{doing} raised {in_a_line(error)}") from error


def stayed(name: str, device: torch.device | str, expected: torch.device | str) -> None:
    """Check that a tensor is still on the device on which the kit has put it and compares it."""
    if torch.device(device).type != torch.device(expected).type:
        raise Unusable(f"{name} is on {device} now, not on {expected}, where the kit had put it")


def noise(shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Return random values of order one, none of them zero."""
    plain = torch.randn(tuple(shape), dtype=torch.float64, generator=generator)
    plain = plain + plain.sign() * 0.1
    if dtype.is_complex:
        return torch.complex(plain, plain.flip(-1) if plain.dim() else plain).to(dtype)
    return plain.to(dtype)
