"""What a pattern is: an id, a sentence, a test over what is known of a tensor, and the rogue that shows it."""

from __future__ import annotations

import inspect
from typing import ClassVar

from everyrank.suites.compare.patterns.evidence import AllRanks, OneRank


class Pattern:
    """The docstring of a pattern is what docs/parity-patterns.md has on it; its first line is the sentence."""

    id: ClassVar[str] = ""
    """The id is part of the interface. Without one, a pattern is a text alone."""
    rogue: ClassVar[str] = ""
    """The rogue that shows it: one of parity's, or of the contract that the example names."""
    example: ClassVar[str] = ""
    """How the report of the rogue begins."""

    @property
    def text(self) -> str:
        return inspect.cleandoc(type(self).__doc__ or "")

    @property
    def sentence(self) -> str:
        """The first line of its docstring, as a part of a sentence."""
        first = self.text.partition("\n")[0]
        return first[0].lower() + first[1:].removesuffix(".")

    def of_one_rank(self, seen: OneRank) -> str | None:
        """Return what the pattern says of a tensor as one rank has it, or None if it does not fit."""
        return None

    def of_all_ranks(self, seen: AllRanks) -> str | None:
        """Return what the pattern says of a tensor as all ranks have it, or None if it does not fit."""
        return None
