"""docs/options.md has every option and ini key of ours, with its default, and no other; help texts are plain."""

from __future__ import annotations

import re

import pytest
from _pytest.config.argparsing import Argument

from tests.documents import ROOT
from tests.end_to_end.test_plain_words import dead_text

GROUPS = ("everyrank", "everyrank-reports", "everyrank-suites")


def _long_name(option: Argument) -> str:
    return next(name for name in option.names() if name.startswith("--"))


def _options(config: pytest.Config) -> dict[str, str]:
    """Return the help text of each option of ours, by its first long name."""
    groups = [group for group in config._parser._groups if group.name in GROUPS]
    assert sorted(group.name for group in groups) == sorted(GROUPS)
    return {_long_name(option): option.attrs()["help"] for group in groups for option in group.options}


def _ini_keys(config: pytest.Config) -> dict[str, tuple[str, object]]:
    """Return the help text and the default of each ini key of ours."""
    found = config._parser._inidict
    return {key: (text, default) for key, (text, _, default) in found.items() if key.startswith("everyrank_")}


def _rows() -> dict[str, str]:
    """Return the rows of the tables of options and ini keys, by the name in their first cell."""
    text = (ROOT / "docs/options.md").read_text().partition("## Marks")[0]
    return {row[1]: row[0] for row in re.finditer(r"^\| `(--[\w-]+|\w+).*$", text, re.MULTILINE)}


def test_the_page_has_every_option_and_no_other(pytestconfig: pytest.Config) -> None:
    assert {name for name in _rows() if name.startswith("--")} == set(_options(pytestconfig))


def test_the_page_has_every_ini_key_with_its_default(pytestconfig: pytest.Config) -> None:
    rows = {name: row for name, row in _rows().items() if not name.startswith("--")}
    run_file = "everyrank_run_file"
    assert {*rows, run_file} == set(_ini_keys(pytestconfig))
    assert f"`{run_file}`" in _rows()["--run-file"]
    for key, row in rows.items():
        default = str(_ini_keys(pytestconfig)[key][1])
        assert default.lower() == row.split("|")[2].strip(" `"), row


def test_the_help_of_our_options_is_plain_english(pytestconfig: pytest.Config) -> None:
    texts = [*_options(pytestconfig).values(), *(text for text, _ in _ini_keys(pytestconfig).values())]
    assert all(texts)
    assert [problem for text in texts if (problem := dead_text(text))] == []
