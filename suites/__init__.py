"""Contracts and their laws, and the conformance tests that run them on a subject.

from everyrank.suites import Subject, conformance
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everyrank.suites.collect.items import conformance, run
    from everyrank.suites.engine.subject import Bound, Lack, Subject

_HOME = {
    "Bound": "everyrank.suites.engine.subject",
    "Lack": "everyrank.suites.engine.subject",
    "Subject": "everyrank.suites.engine.subject",
    "conformance": "everyrank.suites.collect.items",
    "run": "everyrank.suites.collect.items",
}

__all__ = ["Bound", "Lack", "Subject", "conformance", "run"]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
