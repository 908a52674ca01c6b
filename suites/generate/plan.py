"""What is drawn: the values of the options ``--generate``, ``--generate-seed`` and ``--generate-draw``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SearchPlan:
    """The values of the options."""

    draws: int
    seed: int = 0
    draw: str = ""
    """One draw as JSON; only this draw is carried out."""
    shrink: bool = True

    def options(self) -> list[str]:
        """Return the options that repeat this search."""
        if self.draw:
            return [f"--generate-draw={self.draw}"]
        return [f"--generate={self.draws}", f"--generate-seed={self.seed}"]
