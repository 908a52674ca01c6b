"""The law of ``sharded-optimizer`` about moves in any order."""

from __future__ import annotations

from everyrank.suites.moves.law import crossed
from everyrank.suites.sharded_optimizer.contract import CONTRACT

#: The crossings on which rogues are tried.
_CORE = (9, 39, 49, 68, 193, 211, 221, 225, 228, 232, 233, 240, 242, 246, 247, 253)

crossed(CONTRACT, __name__, _CORE)
