"""Reading run files in tests: each line checked against the schema, then as plain data."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
from everyrank.reports.schema import text


@cache
def _validator() -> Any:
    return jsonschema.Draft202012Validator(json.loads(text()))


@dataclass
class RunFile:
    """The lines of a file, in the order in which they were written."""

    header: dict[str, Any]
    cases: list[dict[str, Any]]
    footer: dict[str, Any] | None

    def __getitem__(self, name: str) -> dict[str, Any]:
        """The line of a test by the end of its node id."""
        found = [case for case in self.cases if case["id"].split("::", 1)[-1] == name]
        assert len(found) == 1, f"{name}: {len(found)} of {[case['id'] for case in self.cases]}"
        return found[0]

    @property
    def outcomes(self) -> dict[str, str]:
        return {case["id"].rsplit("::", 1)[-1]: case["outcome"] for case in self.cases}


def read(path: Path) -> RunFile:
    """Every line is one that the schema allows; the header is first, and the footer last."""
    text = path.read_text()
    assert text.endswith("\n")
    lines = [json.loads(line) for line in text.splitlines()]
    for line in lines:
        _validator().validate(line)
    kinds = [line["line"] for line in lines]
    assert kinds[0] == "header"
    assert "header" not in kinds[1:]
    assert "footer" not in kinds[:-1]
    whole = kinds[-1] == "footer"
    return RunFile(lines[0], lines[1:-1] if whole else lines[1:], lines[-1] if whole else None)
