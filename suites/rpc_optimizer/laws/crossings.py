"""The law of ``rpc-optimizer`` about moves in any order."""

from __future__ import annotations

from everyrank.suites.moves.law import crossed
from everyrank.suites.rpc_optimizer.contract import CONTRACT

#: The crossings on which rogues are tried.
_CORE = (2, 9, 14, 15, 22, 73, 200, 209, 210, 220, 249)

crossed(CONTRACT, __name__, _CORE)
