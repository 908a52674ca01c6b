"""``everyrank accept --lacks``: the line of a ledger with what its subject lacks."""

from __future__ import annotations

from pathlib import Path

import pytest
from everyrank.reports.errors import BadLedger
from everyrank.reports.ledger.ledger_file import read_ledger


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('subject = "mine"\n', 'subject = "mine"\nlacks = ["b", "c"]\n'),
        ("# Mine.\n\n[[known]]\n", 'lacks = ["b", "c"]\n# Mine.\n\n[[known]]\n'),
        ('lacks = ["a", "c"]  # for now\n[[known]]\n', 'lacks = ["a", "b", "c"]\n[[known]]\n'),
    ],
)
def test_a_lack_stands_above_the_entries(tmp_path: Path, before: str, after: str) -> None:
    entry = 'case = "a[b]"\nkind = "fail"\n'
    ending = entry if before.endswith("[[known]]\n") else ""
    (tmp_path / "mine.toml").write_text(before + ending)
    assert read_ledger(tmp_path / "mine.toml").lacking(["b", "c"]).text == after + ending


def test_lacks_on_several_lines_are_left_to_a_person(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('lacks = [\n  "a",\n]\n')
    with pytest.raises(BadLedger, match=r"write lacks = \[\.\.\.\] on one line"):
        read_ledger(tmp_path / "mine.toml").lacking(["b"])
