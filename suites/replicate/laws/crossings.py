"""The law of ``replicate`` about moves in any order."""

from __future__ import annotations

from everyrank.suites.moves.law import crossed
from everyrank.suites.replicate.contract import CONTRACT

#: The crossings on which rogues are tried.
_CORE = (25, 38, 48, 55, 65, 74, 199, 200, 203, 212, 229, 243)

crossed(CONTRACT, __name__, _CORE)
