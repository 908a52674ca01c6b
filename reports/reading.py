"""The old name of ``everyrank.reports.runfile.read``, which still works."""

from __future__ import annotations

import warnings

from everyrank.reports.runfile.read import read as read

warnings.warn(
    "everyrank.reports.reading is now called everyrank.reports.runfile.read", DeprecationWarning, stacklevel=2
)
