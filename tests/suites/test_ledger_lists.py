"""A ledger says a thing once: an entry lists cases, a ledger includes another and takes cases away from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from everyrank.suites.engine.judge import Outcome, judge
from everyrank.suites.engine.ledger import Ledger, read
from everyrank.suites.errors import LedgerError


def _known(case: str, match: str = "off by", more: str = "") -> str:
    return f'[[known]]\ncase = {case}\nkind = "fail"\nmatch = "{match}"\nissue = "unreported"\n{more}'


def _include(ledger: str, without: str = "") -> str:
    return f'[[include]]\nledger = "{ledger}"\n' + (f"without = {without}\n" if without else "")


def _read(folder: Path, **files: str) -> Ledger:
    for name, text in files.items():
        (folder / f"{name}.toml").write_text(text)
    return read(folder / "mine.toml", "2.13.0")


def _assigned(ledger: Ledger, *cases: str) -> dict[str, tuple[str, str]]:
    """Return the pattern of each case, and what it states."""
    return {case: (entry.case, entry.match[0]) for case, entry in ledger.assign(cases).items()}


def test_each_case_of_a_list_is_known_by_the_same_statement(tmp_path: Path) -> None:
    ledger = _read(tmp_path, mine=_known('["a[x]", "b[*]"]'))
    assert _assigned(ledger, "a[x]", "a[y]", "b[y]") == {"a[x]": ("a[x]", "off by"), "b[y]": ("b[*]", "off by")}
    first, second = ledger.entries
    assert first.statement == second.statement


def test_two_entries_are_two_statements(tmp_path: Path) -> None:
    first, second = _read(tmp_path, mine=_known('"a[x]"') + _known('"b[x]"')).entries
    assert first.statement != second.statement


def test_a_ledger_has_the_entries_and_blind_spots_of_one_that_it_includes(tmp_path: Path) -> None:
    blind = '[blind]\nlies = "it looks the same"\n'
    ledger = _read(tmp_path, mine=_include("base.toml") + _known('"a[x]"'), base=_known('"b[x]"', "theirs", blind))
    assert _assigned(ledger, "a[x]", "b[x]") == {"a[x]": ("a[x]", "off by"), "b[x]": ("b[x]", "theirs")}
    assert ledger.blind == {"lies": "it looks the same"}


def test_what_is_taken_away_may_be_stated_anew(tmp_path: Path) -> None:
    blind = '[blind]\nlies = "it looks the same"\n'
    mine = _include("base.toml", '["b[x]", "lies"]') + _known('"b[x]"', "mine")
    ledger = _read(tmp_path, mine=mine, base=_known('["b[x]", "c[*]"]', "theirs", blind))
    assert _assigned(ledger, "b[x]", "c[x]") == {"b[x]": ("b[x]", "mine"), "c[x]": ("c[*]", "theirs")}
    assert ledger.blind == {}


def test_an_include_reaches_through_another(tmp_path: Path) -> None:
    middle = _include("base.toml") + _known('"b[x]"', "middle")
    files = {
        "mine": _include("middle.toml", '["a[x]"]'),
        "middle": middle,
        "base": _known('["a[x]", "c[x]"]', "base"),
    }
    assert _assigned(_read(tmp_path, **files), "a[x]", "b[x]", "c[x]") == {
        "b[x]": ("b[x]", "middle"),
        "c[x]": ("c[x]", "base"),
    }


def test_what_other_versions_of_torch_do_may_be_taken_away(tmp_path: Path) -> None:
    base = _known('"a[x]"', more='torch = ">=2.14"\n')
    assert _read(tmp_path, mine=_include("base.toml", '["a[x]"]'), base=base).entries == ()


_TWO = '["a[x]", "b[x]"]'


@pytest.mark.parametrize(
    ("mine", "base", "message"),
    [
        (_known('["a[x]", "a[x]"]'), "", "mine.toml: an entry lists 'a[x]' twice: remove one of them"),
        (_known("[]"), "", "mine.toml: an entry without `case`: name a case, or a list of cases"),
        (_known('["a[x]", ""]'), "", "mine.toml: an entry without `case`: name a case, or a list of cases"),
        (
            '[[known]]\ncase = ["a[x]", "b[x]"]\nkind = "fail"\nissue = "unreported"\n',
            "",
            "mine.toml: a[x]: its entry lists several cases: say what is seen, by match, raises or at_most",
        ),
        (
            _include("other.toml"),
            "",
            "mine.toml includes other.toml, which is not there: name a ledger beside this one",
        ),
        (
            _include("mine.toml"),
            "",
            "ledgers include each other in a circle, mine.toml -> mine.toml: remove one of these [[include]]",
        ),
        (
            _include("base.toml"),
            _include("mine.toml"),
            "a circle, mine.toml -> base.toml -> mine.toml: remove one of these [[include]]",
        ),
        (
            _include("base.toml", '["a[*]"]'),
            _known('"a[x]"'),
            "mine.toml takes 'a[*]' away from base.toml, which does not list it: did you mean 'a[x]'?",
        ),
        (
            _include("base.toml", '["novel"]'),
            _known('"a[x]"'),
            "mine.toml takes 'novel' away from base.toml, which does not list it: remove it from `without`",
        ),
        (
            _include("base.toml") * 2,
            _known('"a[x]"'),
            "mine.toml includes base.toml twice: make one [[include]] of both",
        ),
        ('include = "base.toml"\n', "", 'mine.toml: write [[include]], below it ledger = "other.toml"'),
        ('[[include]]\nledgers = "base.toml"\n', "", "mine.toml: write [[include]]"),
        (_include("base.toml", '"a[x]"'), _known('"a[x]"'), "mine.toml: write [[include]]"),
        (_include("base.toml"), _known('"a[x]"').replace("fail", "odd"), "base.toml: a[x]: kind must be one of"),
        (_include("base.toml"), "[[known", "base.toml: not TOML"),
    ],
)
def test_a_mistake_is_refused_in_a_sentence_with_what_to_do(
    tmp_path: Path, mine: str, base: str, message: str
) -> None:
    with pytest.raises(LedgerError) as refused:
        _read(tmp_path, mine=mine, base=base)
    assert message in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1 + str(refused.value).count("\nmine.toml: b[x]")


@pytest.mark.parametrize(
    ("mine", "cases", "message"),
    [
        (
            _known(_TWO),
            ["a[x]"],
            "mine.toml: the entry 'b[x]' matches no case: correct or remove it",
        ),
        (
            _include("base.toml"),
            ["a[x]"],
            "the entry 'b[x]' matches no case: correct or take it away from base.toml, by `without`",
        ),
        (
            _include("base.toml") + _known('"a[*]"'),
            ["a[x]", "b[x]"],
            "a[x] is claimed twice, by 'a[*]' and 'a[x]' of base.toml",
        ),
    ],
)
def test_an_entry_that_does_not_fit_the_cases_is_refused(
    tmp_path: Path, mine: str, cases: list[str], message: str
) -> None:
    with pytest.raises(LedgerError) as refused:
        _read(tmp_path, mine=mine, base=_known(_TWO)).assign(cases)
    assert message in str(refused.value)


def test_a_case_that_passes_is_to_be_taken_away_from_the_ledger_that_lists_it(tmp_path: Path) -> None:
    (entry,) = _read(tmp_path, mine=_include("base.toml"), base=_known('"a[*]"')).entries
    assert judge(Outcome("pass"), entry, None, False) == (
        "stale",
        "the ledger expects 'fail' (a[*]), and it passes: take it away from base.toml, by `without`",
    )
