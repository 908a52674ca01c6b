"""The old name of ``everyrank.suites.compare.reference``, which still works."""

from __future__ import annotations

import warnings

from everyrank.suites.compare.reference import Plan as Plan
from everyrank.suites.compare.reference import order_matched as order_matched
from everyrank.suites.compare.reference import whole_batch as whole_batch

warnings.warn(
    "everyrank.suites.reference is now called everyrank.suites.compare.reference", DeprecationWarning, stacklevel=2
)
