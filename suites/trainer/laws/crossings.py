"""The law of ``trainer`` about moves in any order."""

from __future__ import annotations

from everyrank.suites.moves.law import crossed
from everyrank.suites.trainer.contract import CONTRACT

#: The crossings on which rogues are tried.
_CORE = (6, 8, 10, 22, 37, 47, 207, 231, 237, 244, 274, 286, 287, 290, 291, 292, 294, 298, 301, 302, 304, 306)

crossed(CONTRACT, __name__, _CORE)
