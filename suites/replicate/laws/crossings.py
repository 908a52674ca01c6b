"""The law of ``replicate`` about moves in any order."""

from __future__ import annotations

from everyrank.suites.moves.law import crossed
from everyrank.suites.replicate.contract import CONTRACT

#: The crossings on which rogues are tried.
_CORE = (1, 21, 40, 67)

crossed(CONTRACT, __name__, _CORE)
