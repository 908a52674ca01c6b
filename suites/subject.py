"""A subject: an implementation under test, as its adapter declares it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from _pytest.config import parse_warning_filter
from everyrank.suites.errors import DeclarationError


@dataclass(frozen=True)
class Lack:
    """Something that a subject does not claim. It must refuse loudly, with this error."""

    error: type[BaseException] | tuple[type[BaseException], ...]
    reason: str


@dataclass(frozen=True)
class Bound:
    """A subject that is approximate by design says how far off it may be, and why."""

    relative: float
    reason: str


@dataclass(frozen=True)
class Subject:
    """What is undeclared is claimed.

    ``lacks`` and ``known`` name cases by a pattern over case ids without the contract, such as
    ``parity.sparse[*]`` or ``*[LBFGS-*]``; stars and question marks as in file names, brackets as they stand.
    """

    name: str
    contract: str
    build: Callable[..., Any]
    sizes: tuple[int, ...] | None = None
    """The world sizes that it runs at; None for those of the contract."""
    device: str = "cpu"
    """``cpu``; or ``cuda``: a GPU for each rank, and NCCL between them."""
    lacks: Mapping[str, Lack] = field(default_factory=dict)
    known: str | Path | None = None
    """The ledger's file; relative to the file of the test that names the subject."""
    declares: frozenset[str] = frozenset()
    """Choices that a contract leaves to the subject, by the contract's names."""
    bound: Bound | None = None
    warns: tuple[str, ...] = ()
    """The warnings that it brings, which are not shown: ``ignore:text:category``, as pytest's ``filterwarnings``."""
    sabotage: str = ""
    """Of a rogue: what was done to the exemplar."""

    def __post_init__(self) -> None:
        if not self.name or not isinstance(self.name, str):
            raise DeclarationError(f"a subject needs a name, not {self.name!r}")
        if not callable(self.build):
            raise DeclarationError(f"{self.name}: build must be callable, not a {type(self.build).__name__}")
        if self.device not in ("cpu", "cuda"):
            raise DeclarationError(f"{self.name}: device must be 'cpu' or 'cuda', not {self.device!r}")
        for size in self.sizes or ():
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                raise DeclarationError(f"{self.name}: a world size must be a whole number of ranks, not {size!r}")
        for warning in self.warns:
            self._check_warning(warning)
        for pattern, lack in self.lacks.items():
            if not isinstance(lack, Lack):
                raise DeclarationError(f"{self.name}: lacks[{pattern!r}] must be Lack(error, reason), not {lack!r}")

    def _check_warning(self, warning: str) -> None:
        """Refuse what pytest would not understand, and what would hide every warning of a category."""
        try:
            action, text, _, module, _ = parse_warning_filter(warning, escape=False)
        except (pytest.UsageError, ImportError) as error:
            reason = str(error).strip().splitlines()[-1]
            raise DeclarationError(f"{self.name}: warns: {warning!r} is no filter of warnings: {reason}") from None
        if action != "ignore" or not (text or module):
            raise DeclarationError(
                f"{self.name}: warns: a declared warning is ignored, and named by its text: write "
                f"'ignore:the start of its text:Category', not {warning!r}"
            )
