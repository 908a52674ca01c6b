"""transformers: every model type that has a plan to be parallel, and how it trains by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from everyrank.suites import Subject, conformance

pytest.importorskip("transformers", reason="pip install transformers")
from models import tiny
from models.contract import CONTRACT
from models.ways import ModelType

LEDGERS = Path(__file__).parent / "ledgers"


def subject(name: str) -> Subject:
    ledger = LEDGERS / f"{name}.toml"
    known = ledger if ledger.exists() else None
    return Subject(name, CONTRACT, ModelType(name), known=known, package="transformers")


@pytest.mark.filterwarnings("ignore")
@conformance(*map(subject, tiny.model_types()))
def test_transformers(case: Any) -> None:
    case.run()
