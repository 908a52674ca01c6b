"""Prove that a model, made parallel, trains as it does in one process; if not, name the first tensor that parts.

`parity` is called on every rank, in a test or in a script under torchrun. It returns a `Report`, or raises `Parted`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everyrank.parity.api import parity as parity
    from everyrank.parity.errors import Defect as Defect
    from everyrank.parity.errors import Unusable as Unusable
    from everyrank.parity.handed.call import handover as handover
    from everyrank.parity.handed.report import Handover as Handover
    from everyrank.parity.handed.report import Misfit as Misfit
    from everyrank.parity.handed.report import Unlike as Unlike
    from everyrank.parity.layouts.call import reshard as reshard
    from everyrank.parity.layouts.report import Resharded as Resharded
    from everyrank.parity.layouts.report import Stray as Stray
    from everyrank.parity.layouts.report import Strayed as Strayed
    from everyrank.parity.report.report import Finding as Finding
    from everyrank.parity.report.report import Parted as Parted
    from everyrank.parity.report.report import Report as Report
    from everyrank.parity.script.observe import Observation as Observation
    from everyrank.parity.script.observe import observe as observe
    from everyrank.parity.script.records import Compared as Compared
    from everyrank.parity.script.records import compare as compare

__all__ = [
    "Compared", "Defect", "Finding", "Handover", "Misfit", "Observation", "Parted", "Report", "Resharded",
    "Stray", "Strayed", "Unlike", "Unusable", "compare", "handover", "observe", "parity", "reshard",
]  # fmt: skip

_MODULES = {
    "parity": "api", "Defect": "errors", "Unusable": "errors", "observe": "script.observe",
    "Observation": "script.observe", "compare": "script.records", "Compared": "script.records",
    "handover": "handed.call", "Handover": "handed.report", "Misfit": "handed.report", "Unlike": "handed.report",
    "reshard": "layouts.call", "Resharded": "layouts.report", "Stray": "layouts.report", "Strayed": "layouts.report",
}  # fmt: skip


def __getattr__(name: str) -> object:
    """Import what is asked for: a rank of a script that is only recorded pays for none of it."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"everyrank.parity.{_MODULES.get(name, 'report.report')}"), name)
