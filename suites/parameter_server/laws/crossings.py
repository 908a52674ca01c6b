"""The law of ``parameter-server`` about moves in any order."""

from __future__ import annotations

from everyrank.suites.moves.law import crossed
from everyrank.suites.parameter_server.contract import CONTRACT

#: The crossings on which rogues are tried.
_CORE = (21, 22, 47, 51, 196, 200, 221, 223, 231)

crossed(CONTRACT, __name__, _CORE)
