"""docs/parity-patterns.md has each pattern of the code once, with a rogue whose report begins as the page shows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest
from everyrank.parity import Parted, parity
from everyrank.parity.judge.pattern import PATTERNS

from tests.documents import ROOT
from tests.parity.parallel.rogues import ROGUES

_SECTION = re.compile(r"^## (?:`([a-z-]+)`|No pattern)$(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e-\d+)?")


@dataclass(frozen=True)
class Section:
    """What the page has on a pattern."""

    pattern: str
    line: str
    rogue: str


def sections() -> list[Section]:
    page = (ROOT / "docs/parity-patterns.md").read_text()
    found = []
    for match in _SECTION.finditer(page):
        (line,) = re.findall(r"^    (parity: .*)$", match[2], re.MULTILINE)
        (rogue,) = re.findall(r"^Rogue: `([a-z0-9-]+)`\.$", match[2], re.MULTILINE)
        found.append(Section(match[1] or "", line, rogue))
    return found


def test_the_page_has_the_patterns_of_the_code() -> None:
    assert [section.pattern for section in sections()] == [*PATTERNS, ""]


@pytest.mark.parametrize("section", sections(), ids=lambda section: section.pattern or "none")
def test_the_rogue_of_a_pattern_declares_it(section: Section) -> None:
    patterns = ROGUES[section.rogue].patterns
    assert section.pattern in patterns or not (section.pattern or any(patterns))


@pytest.mark.group("packages")
@pytest.mark.parametrize(
    "section",
    [
        pytest.param(section, id=section.pattern or "none", marks=pytest.mark.world(ROGUES[section.rogue].size))
        for section in sections()
    ],
)
def test_the_rogue_of_a_pattern_gives_the_line_of_the_page(section: Section, process_group: Any) -> None:
    rogue = ROGUES[section.rogue]
    subject = rogue.subject()
    try:
        with pytest.raises(Parted) as parted:
            parity(**subject.arguments())
    finally:
        subject.close()
    first = str(parted.value).splitlines()[0]
    assert _NUMBER.sub("N", first) == _NUMBER.sub("N", section.line)


def test_the_page_of_parity_lists_the_patterns() -> None:
    table = (ROOT / "docs/parity.md").read_text()
    assert re.findall(r"^\| `([a-z-]+)` \|", table, re.MULTILINE) == [*PATTERNS]
