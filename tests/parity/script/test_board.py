"""The page of public scripts has the rows of the board, and each row has its script."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.smoke


def test_the_page_has_the_rows_of_the_board() -> None:
    pytest.importorskip("tomllib")
    table = runpy.run_path(str(ROOT / "boards/scripts/table.py"))["table"]()
    assert table in (ROOT / "docs/boards-scripts.md").read_text(), "python boards/scripts/table.py makes it"
    scripts = {path.name for path in (ROOT / "boards/scripts/examples").iterdir()}
    named = {word.strip("`") for line in table.splitlines()[2:] for word in line.split("|")[1].split()}
    assert {each for each in named if each.endswith(".py")} == scripts
