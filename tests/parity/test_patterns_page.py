"""Each pattern has an example, as docs/parity-patterns.md shows it: how the report of its rogue begins."""

from __future__ import annotations

import re
from typing import Any

import pytest
from everyrank.parity import Parted, parity
from everyrank.suites.collect.items import parameter
from everyrank.suites.compare.patterns.fit import PATTERNS
from everyrank.suites.engine.case import Case
from everyrank.suites.engine.failure import Failed
from everyrank.suites.kill.matrix import tried
from everyrank.suites.kill.sample import Sample

from tests.documents import ROOT
from tests.parity.parallel.rogues import ROGUES

_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e-\d+)?")

#: The patterns whose rogue is parity's, by the rogue's name; of no pattern, the page shows one.
_OF_PARITY = {pattern.rogue: pattern for pattern in PATTERNS.values() if pattern.rogue in ROGUES}
_WITHOUT = "smooths-labels-by-hand"


def _lines() -> dict[str, str]:
    """The first line that each rogue of parity gives, by its name."""
    page = (ROOT / "docs/parity-patterns.md").read_text()
    (line,) = re.findall(r"^    (parity: .*)$", page, re.MULTILINE)
    (rogue,) = re.findall(r"^Rogue: `([a-z0-9-]+)`\.$", page, re.MULTILINE)
    return {**{name: pattern.example for name, pattern in _OF_PARITY.items()}, rogue: line}


def test_the_rogue_of_a_pattern_declares_it() -> None:
    assert [name for name, pattern in _OF_PARITY.items() if pattern.id not in ROGUES[name].patterns] == []
    assert _lines().keys() == {*_OF_PARITY, _WITHOUT}
    assert not any(ROGUES[_WITHOUT].patterns)


@pytest.mark.group("packages")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.world(ROGUES[name].size)) for name in (*_OF_PARITY, _WITHOUT)]
)
def test_the_rogue_of_a_pattern_gives_its_line(name: str, process_group: Any) -> None:
    subject = ROGUES[name].subject()
    try:
        with pytest.raises(Parted) as parted:
            parity(**subject.arguments())
    finally:
        subject.close()
    first = str(parted.value).splitlines()[0]
    assert _NUMBER.sub("N", first) == _NUMBER.sub("N", _lines()[name])


def _cases() -> list[Any]:
    """Return the cases in which rogues of contracts give the examples of their patterns."""
    examples = {pattern.example.splitlines()[0]: pattern.id for pattern in PATTERNS.values()}
    contracts = {match[1] for line in examples if (match := re.search(r" ([a-z-]+)/", line))}
    cases = [case for contract in sorted(contracts) for case in tried(contract, Sample(1, 10**6))]
    by_line = {f"[fail] {case.subject.name} {case.id}": case for case in cases}
    return [parameter(by_line[line], id=id) for line, id in examples.items() if PATTERNS[id].rogue not in _OF_PARITY]


@pytest.mark.parametrize("case", _cases(), indirect=True)
def test_the_rogue_of_a_contract_gives_the_lines_of_its_pattern(case: Case) -> None:
    (pattern,) = [pattern for pattern in PATTERNS.values() if pattern.rogue == case.subject.name]
    with pytest.raises(Failed) as failed:
        case.run()
    assert pattern.example in str(failed.value)
    assert pattern.example.endswith(f"({pattern.id})")
