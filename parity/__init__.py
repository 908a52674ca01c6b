"""Prove that a model, made parallel, trains as it does in one process; if not, name the first tensor that parts.

`parity` is called on every rank, in a test or in a script under torchrun. It returns a `Report`, or raises `Parted`.
"""

from everyrank.parity.api import parity
from everyrank.parity.errors import Defect, Unusable
from everyrank.parity.report.report import Finding, Parted, Report

__all__ = ["Defect", "Finding", "Parted", "Report", "Unusable", "parity"]
