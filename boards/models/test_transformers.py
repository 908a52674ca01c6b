"""transformers: every model type that has a plan to be parallel, and how it trains by it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from everyrank.model.toml import tomllib
from everyrank.suites import Subject, conformance

pytest.importorskip("transformers", reason="pip install transformers")
from models import tiny
from models.contract import CONTRACT
from models.ways import ModelType

CAUSES: dict[str, list[str]] = tomllib.loads((Path(__file__).parent / "ledgers" / "causes.toml").read_text())
NOT_MADE = CAUSES.pop("not-made")


def subject(name: str) -> Subject:
    known = [f"cause:{cause}" for cause, names in CAUSES.items() if name in names]
    return Subject(name, CONTRACT, ModelType(name, made=name not in NOT_MADE), known=known, package="transformers")


@pytest.mark.filterwarnings("ignore")
@conformance(*map(subject, tiny.model_types()))
def test_transformers(case: Any) -> None:
    case.run()
