"""Which tests of tests/ run: all but the groups, a group, or what was named."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import groups

ROOT = Path(__file__).parents[2]
HERE = ROOT / "tests"


class _Item(SimpleNamespace):
    __hash__ = object.__hash__


#: The marks of some tests; `page` asks for the fixture `browser`.
MARKS = {"plain": ["world"], "smoke": ["group", "smoke"], "whole": ["group"], "page": []}


def _item(name: str, folder: Path = HERE, group: str = "clusters") -> Any:
    def mark(kind: str) -> Any:
        return SimpleNamespace(args=(group,)) if kind in MARKS[name] else None

    fixtures = ["browser"] if name == "page" else []
    path = folder / f"test_{name}.py"
    return _Item(path=path, nodeid=str(path), get_closest_marker=mark, fixturenames=fixtures, name=name)


def _chosen(*arguments: str, option: str | None = None, folder: Path = HERE) -> tuple[list[str], Counter[str] | None]:
    """Return the tests that run, and what the run says of those that it left out."""
    config: Any = SimpleNamespace(
        args=arguments or ("tests",),
        invocation_params=SimpleNamespace(dir=ROOT),
        getoption=lambda name: option,
        hook=SimpleNamespace(pytest_deselected=lambda items: None),
        stash=pytest.Stash(),
    )
    items = [_item(name, folder) for name in MARKS]
    groups.choose(config, items)
    return [item.name for item in items], config.stash.get(groups.LEFT_OUT, None)


def test_without_an_option_the_groups_are_left_out_but_for_their_smoke_tests() -> None:
    assert _chosen() == (["plain", "smoke"], Counter(clusters=1, browser=1))


@pytest.mark.parametrize(
    ("option", "expected"),
    [("clusters", ["smoke", "whole"]), ("browser", ["page"]), ("all", list(MARKS))],
)
def test_an_option_chooses_one_group_or_all(option: str, expected: list[str]) -> None:
    assert _chosen(option=option)[0] == expected


def test_what_lies_in_a_file_that_is_named_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "__file__", str(tmp_path / "groups.py"))
    named = tmp_path / "test_whole.py"
    named.touch()
    assert _chosen(str(tmp_path), folder=tmp_path)[0] == ["plain", "smoke"]
    assert _chosen(f"{named}::test_x", folder=tmp_path)[0] == ["plain", "smoke", "whole"]


def test_tests_of_other_folders_are_left_alone() -> None:
    assert _chosen(folder=ROOT / "suites")[0] == list(MARKS)


def test_a_group_that_does_not_exist_is_refused() -> None:
    with pytest.raises(pytest.UsageError, match="there is no group 'cluster'; the groups are clusters, browser"):
        groups.group_of(_item("whole", group="cluster"))


def test_the_line_at_the_end_counts_what_was_left_out_and_names_the_targets() -> None:
    assert groups.line({"packages": 3, "browser": 12}) == (
        "tests left out: 12 of browser, 3 of packages; to run them: make test-browser, make test-packages, "
        "make test-all (pytest tests/ --group=NAME)"
    )


def test_each_group_has_a_target_and_a_turn() -> None:
    targets = (ROOT / "Makefile").read_text()
    assert f"\n{' '.join(f'test-{name}' for name in [*groups.GROUPS, 'all'])}: " in targets
    script = ROOT / "ci/group_of_commit.sh"
    assert f"groups=({' '.join(groups.GROUPS)})" in script.read_text()
    if (ROOT / ".git").exists():  # a source distribution has no commits
        printed = subprocess.run([script], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        assert printed.strip() in groups.GROUPS


def test_a_run_without_chromium_counts_the_tests_skipped_for_it_and_shows_how_to_install_it(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        "2",
        f"--basetemp={tmp_path}",
        "tests/reports/test_page_column.py",
    ]
    without = {name: value for name, value in os.environ.items() if name != "EVERYRANK_TESTS_NEED_CHROMIUM"}
    ran = subprocess.run(command, cwd=ROOT, env={**without, "PATH": ""}, capture_output=True, text=True, check=True)
    skipped = int(re.findall(r"(\d+) skipped", ran.stdout)[-1])
    tests = f"{skipped} tests were" if skipped > 1 else "1 test was"
    assert (
        f"\n{tests} skipped, since Chromium or its driver is not here; to run them: apt-get install chromium"
        in ran.stdout
    )
