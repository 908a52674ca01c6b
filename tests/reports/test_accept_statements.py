"""What ``everyrank accept`` writes of a deviation, and what the kit then takes for known."""

from __future__ import annotations

from pathlib import Path

import pytest
from everyrank.reports.ledger.statement import Statement, statement
from everyrank.reports.runfile.model import CaseLine, DeviationPart, LedgerPart
from everyrank.suites.engine.ledger import Entry, SeenDeviation
from everyrank.suites.engine.ledger import read as read_as_the_kit_does

from tests.made_up_runs import case
from tests.reports.conftest import Accept

OFF = DeviationPart("step 2, layer0.weight: off by 0.017, 2.5e+14 ULPs (7.9e-03 relative)", [0], off=0.0079)
LOST = DeviationPart("round 2: trainer 0 was answered -18, and not -34: a report was lost", [0])
RAISED = DeviationPart("raised KeyError: no foreach", [2], ["KeyError", "LookupError"])
RELAYED = DeviationPart("on rank 2: raised KeyError: no foreach", [0, 1], ["KeyError", "LookupError"])
PORT = DeviationPart("raised RuntimeError: pair.cc:553 closed by [127.0.0.1]:52610", [0], ["RuntimeError"])
OTHER = DeviationPart("raised IndexError: 3", [1], ["IndexError", "LookupError"])
DTYPES = DeviationPart("raised AssertionError: one dtype, not {torch.f64, torch.c128}!", [0], ["AssertionError"])
KEYS = DeviationPart("raised KeyError: {'a': x, 'b': y}", [0], ["KeyError"])
LONG = DeviationPart("the names are " + "a name, " * 40, [0])


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ([OFF], Statement(("step 2, layer0.weight: off by",), "", 0.02)),
        ([LOST], Statement(("round *: trainer * was answered *, and not *: a report was lost",))),
        ([RELAYED, RAISED], Statement(("raised KeyError: no foreach",), "KeyError")),
        ([RAISED, OTHER], Statement(("raised IndexError:", "raised KeyError: no foreach"), "LookupError")),
        ([PORT], Statement(("raised RuntimeError: pair.cc:* closed by [",), "RuntimeError")),
        ([DTYPES], Statement(("raised AssertionError: one dtype, not *!",), "AssertionError")),
        ([KEYS], Statement(("raised KeyError: {'a': x, 'b': y}",), "KeyError")),
        ([LONG], None),
        ([OFF, LOST], None),
        ([RAISED, OFF], Statement()),
        ([], Statement()),
    ],
)
def test_what_is_stated(seen: list[DeviationPart], expected: Statement | None) -> None:
    found = statement(seen)
    if expected is not None:
        assert found == expected
    if found != Statement():
        entry = Entry("law[*]", "fail", match=found.match, raises=found.raises, at_most=found.at_most)
        assert all(entry.covers(SeenDeviation("fail", line.text, tuple(line.raised), line.off)) for line in seen)


@pytest.mark.parametrize(("off", "at_most"), [(0.0079, 0.02), (0.5, 1.0), (0.6, 2.0), (3e7, 6e7), (1e-13, 2e-13)])
def test_how_far_off_it_may_be(off: float, at_most: float) -> None:
    found = statement([DeviationPart("off by", [0], off=off)]).at_most
    assert found == pytest.approx(at_most)
    assert off <= (found or 0.0)


def test_what_is_not_a_number_has_no_bound() -> None:
    assert statement([DeviationPart("off by inf", [0], off=1.7e308)]).at_most is None


LEDGER = """\
[[known]]
case = "tied[SGD-ws2]"
kind = "fail"
# why
match = "something else" # seen in May
issue = "https://example.org/1"
note = "of a person"

[[known]]
case = "clip[*]"
kind = "fail"
match = "something else"
issue = "unreported"
"""


@pytest.fixture(autouse=True)
def mine(tmp_path: Path) -> Path:
    mine = tmp_path / "mine.toml"
    mine.write_text(LEDGER)
    return mine


def _known(label: str, law: str, *seen: DeviationPart) -> CaseLine:
    return case(law, label, "fail", deviations=list(seen), ledger=LedgerPart("fail", "unreported", ""))


def test_an_entry_that_states_another_deviation_is_restated(mine: Path, accept: Accept) -> None:
    assert accept([_known("SGD", "tied", RAISED)])[0] == 0
    new = 'match = "raised KeyError: no foreach"\nraises = "KeyError"\n'
    assert mine.read_text() == LEDGER.replace('match = "something else" # seen in May\n', new)
    assert accept([_known("SGD", "tied", OFF)])[0] == 0
    text = mine.read_text()
    assert text == LEDGER.replace(
        'match = "something else" # seen in May\n', 'match = "step 2, layer0.weight: off by"\nat_most = 0.02\n'
    )
    assert read_as_the_kit_does(mine).entries[0].at_most == 0.02
    assert accept([_known("SGD", "tied", OFF)])[0] == 0
    assert mine.read_text() == text


def test_what_was_not_stated_stands_below_the_kind(mine: Path, accept: Accept) -> None:
    plain = LEDGER.replace('match = "something else" # seen in May\n', "")
    mine.write_text(plain)
    assert accept([_known("SGD", "tied", RAISED)])[0] == 0
    new = 'kind = "fail"\nmatch = "raised KeyError: no foreach"\nraises = "KeyError"\n# why\n'
    assert mine.read_text() == plain.replace('kind = "fail"\n# why\n', new)


def test_a_pattern_that_states_another_deviation_is_for_a_person(mine: Path, accept: Accept) -> None:
    code, printed = accept([_known("SGD", "clip", RAISED)])
    assert code == 1
    assert "the entry 'clip[*]' matches more cases, and states another deviation: narrow or correct it" in printed
    assert mine.read_text() == LEDGER


def test_a_new_entry_states_what_was_seen_and_a_stale_one_goes_with_its_statement(mine: Path, accept: Accept) -> None:
    new = case("none.position", "SGD", "fail", deviations=[OFF])
    assert accept([new, case("tied", "SGD", "stale")])[0] == 0
    clip, added = read_as_the_kit_does(mine).entries
    assert clip.match == ("something else",)
    assert (added.match, added.raises, added.at_most) == (("step 2, layer0.weight: off by",), "", 0.02)
