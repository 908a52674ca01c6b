"""Print the file with a player's crossings: ``python -m everyrank.suites.moves package.module:Player``."""

from __future__ import annotations

import pkgutil
import sys
from typing import Any

from everyrank.suites.moves.crossing import crossings
from everyrank.suites.moves.file import file_of, written

player: Any = pkgutil.resolve_name(sys.argv[1])
print(f"{file_of(player)}: {crossings(player).strength()}", file=sys.stderr)
print(written(player), end="")
