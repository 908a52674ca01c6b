"""Contracts and their laws, and the conformance tests that run them on a subject.

from everyrank.suites import Subject, conformance
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everyrank.suites.collect.items import conformance, run
    from everyrank.suites.engine.contract import Contract, Point
    from everyrank.suites.engine.subject import Bound, Lack, Subject
    from everyrank.suites.errors import Deviation

_HOME = {
    "Bound": "everyrank.suites.engine.subject",
    "Contract": "everyrank.suites.engine.contract",
    "Deviation": "everyrank.suites.errors",
    "Lack": "everyrank.suites.engine.subject",
    "Point": "everyrank.suites.engine.contract",
    "Subject": "everyrank.suites.engine.subject",
    "conformance": "everyrank.suites.collect.items",
    "run": "everyrank.suites.collect.items",
}

__all__ = ["Bound", "Contract", "Deviation", "Lack", "Point", "Subject", "conformance", "run"]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
