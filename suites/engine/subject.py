"""A subject: an implementation under test, declared by its adapter."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from _pytest.config import parse_warning_filter
from everyrank.fixtures.optimizers import Row
from everyrank.suites.engine.contract import Contract
from everyrank.suites.errors import DeclarationError, kind_of


@dataclass(frozen=True)
class Lack:
    """Something that a subject does not claim. It must refuse it with this error."""

    error: type[BaseException] | tuple[type[BaseException], ...]
    reason: str
    seen: str = ""
    """Where there is nothing to refuse: a part of the text of the deviation that is seen instead."""


@dataclass(frozen=True)
class Bound:
    """How far off a subject may be that is approximate by design, and the reason."""

    relative: float
    reason: str


@dataclass(frozen=True)
class Subject:
    """An implementation under test. It claims everything that it does not declare otherwise.

    ``lacks`` names capabilities of the contract, such as ``["state_dict", "clipping"]``. A mapping states an error
    for each, and may also name cases, by a pattern over case ids without the contract, such as ``parity.sparse[*]``
    or ``*[LBFGS-*]``; stars and question marks work as in file names, brackets are literal. The list may hold such
    mappings beside names.
    """

    name: str
    contract: str | Contract
    """The name of an installed contract, or the Contract itself."""
    build: Callable[..., Any]
    sizes: tuple[int, ...] | None = None
    """The world sizes at which it runs; None for those of the contract."""
    device: str = "cpu"
    """``cpu``; or ``cuda``: a GPU for each rank, and NCCL between them."""
    lacks: Mapping[str, Lack] | Sequence[str | Mapping[str, Lack]] = ()
    known: str | Path | Sequence[str | Path] | None = None
    """The ledger's file, relative to the file of the test that names the subject; or several ledgers, of which one at
    most is the subject's own. ``torch:fsdp2`` is the one of torch's fully_shard, which everyrank ships."""
    declares: frozenset[str] = frozenset()
    """The choices of this subject where its contract leaves one, by the contract's names."""
    bound: Bound | None = None
    warns: tuple[str, ...] = ()
    """Filters for warnings of the subject: ``ignore:text:category``, as pytest's ``filterwarnings`` has them."""
    optimizers: Sequence[Row] = ()
    """Rows of optimizers of its own: it is asked about these alone, and no other subject is asked about them."""
    package: str = ""
    """The package that it is from, as pip names it: run files and boards have its version."""
    variant_of: Subject | None = None
    """The subject that this one is a variant of, such as DDP for DDP with a hook: unless the profile is full, it is
    asked those laws alone that its difference touches."""
    touches: tuple[str, ...] = ()
    """The laws that the difference from ``variant_of`` touches: ids, or patterns such as ``state.*``."""
    exemplar: bool = False
    """Whether it is a known-good implementation, which the kill matrix tries too: unless the profile is full, it is
    asked the core cases alone."""
    turn: int | None = None
    """Its number among subjects that share the scripts of their contract in the default profile, counted from 0: each
    has a third of them. Without one, it has all."""
    sabotage: str = ""
    """For a rogue: its name, which says how the exemplar was changed."""

    @property
    def declared_lacks(self) -> Mapping[str, Lack | None]:
        """Each lack, in the order of the declaration, with the error that the subject has stated for it."""
        lacks: dict[str, Lack | None] = {}
        for part in (self.lacks,) if isinstance(self.lacks, Mapping) else self.lacks:
            lacks |= {part: None} if isinstance(part, str) else part
        return lacks

    @property
    def contract_name(self) -> str:
        return self.contract if isinstance(self.contract, str) else self.contract.name

    def __post_init__(self) -> None:
        if mistakes := list(self._mistakes()):
            raise DeclarationError("\n".join(mistakes))

    def _mistakes(self) -> Iterator[str]:
        """Yield what is wrong with this declaration, and what to write instead: all at once."""
        values: Any = self  # of whatever types
        if not values.name or not isinstance(values.name, str):
            yield f"a subject needs a name, not {self.name!r}"
        if not callable(values.build):
            yield f"{self.name}: build must be callable, not {kind_of(self.build)}"
        if self.device not in ("cpu", "cuda"):
            yield f"{self.name}: device must be 'cpu' or 'cuda', not {self.device!r}"
        for size in values.sizes or ():
            if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                yield f"{self.name}: a world size must be a whole number of ranks, not {size!r}"
        turn = values.turn
        if turn is not None and (isinstance(turn, bool) or not isinstance(turn, int) or turn < 0):
            yield f"{self.name}: turn is a number among the subjects of its contract, from 0 on, not {turn!r}"
        if bool(self.touches) != (self.variant_of is not None):
            yield f"{self.name}: variant_of and touches go together: name the laws that it touches"
        for row in values.optimizers:
            if not isinstance(row, Row):
                named = getattr(row, "__name__", "Lion")
                yield f"{self.name}: optimizers is a list of rows, such as Row({named}), not of {kind_of(row)}"
        for warning in self.warns:
            yield from self._mistakes_in(warning)
        yield from self._mistakes_in_lacks(values.lacks)

    def _mistakes_in_lacks(self, lacks: Any) -> Iterator[str]:
        if isinstance(lacks, str):
            yield f"{self.name}: lacks is a list of capabilities: [{lacks!r}]"
            return
        for part in (lacks,) if isinstance(lacks, Mapping) else lacks:
            if not isinstance(part, str | Mapping):
                yield f"{self.name}: lacks is a list of names of capabilities, not of {part!r}"
            for pattern, lack in part.items() if isinstance(part, Mapping) else ():
                if not isinstance(lack, Lack):
                    yield f"{self.name}: lacks[{pattern!r}] must be Lack(error, reason), not {lack!r}"

    def _mistakes_in(self, warning: str) -> Iterator[str]:
        """Refuse a filter that pytest would not understand, or that would hide every warning of a category."""
        try:
            action, text, _, module, _ = parse_warning_filter(warning, escape=False)
        except (pytest.UsageError, ImportError) as error:
            reason = str(error).strip().splitlines()[-1]
            yield f"{self.name}: warns: {warning!r} is not a filter of warnings: {reason}"
            return
        if action != "ignore" or not (text or module):
            yield (
                f"{self.name}: warns: a declared warning is ignored, and is named by its text: write "
                f"'ignore:the start of its text:Category', not {warning!r}"
            )
