"""The pages of docs/findings say what they need, and their programs print what stands below them."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from ci import findings
from ci.findings import PAGES, Page, alike, missing, pages, read, sample
from tests.documents import ROOT

#: Torch alone, or what every environment of this project has.
HERE = [page for page in pages() if page.programs and page.needs == ("torch==2.13.0",)]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_a_page_opens_with_what_a_maintainer_asks_for(page: Page) -> None:
    """The packages with their versions, what is expected, when the upstream was searched, and a sentence to paste."""
    assert list(page.fields) == ["Needs", "Expected", "Upstream", "Report"]
    assert all(re.fullmatch(r"[\w-]+==[\w.]+", need) for need in page.needs), page.needs
    assert re.match(r"searched on \d{4}-\d\d-\d\d(?!\d)", page.fields["Upstream"])
    assert page.fields["Report"].startswith('"')
    assert page.fields["Report"].endswith('"')


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_the_programs_of_a_page_compile_and_state_what_they_print(page: Page) -> None:
    for program in page.programs:
        compile(program.code, page.name, "exec")
        assert "script.py" in program.command
        assert program.output


def test_no_fenced_program_is_without_an_output() -> None:
    """But those whose fault shows by chance, which are not run."""
    left_out = {page.name for page in pages() if "```python" in page.text and not page.programs}
    assert left_out == {"rpc-abrupt-shutdown"}


def test_a_package_has_one_version_in_all_pages_and_in_the_rest_of_the_project() -> None:
    files = ("constraints.txt", "boards/packages.txt", "boards/models/packages.txt", "boards/losses/packages.txt")
    pinned = "\n".join((ROOT / name).read_text() for name in files)
    versions = dict(re.findall(r"^([\w-]+)==([^;\s]+)", pinned, re.MULTILINE))
    needed = {need for page in pages() for need in page.needs}
    assert {need for need in needed if need != f"{(name := need.split('==')[0])}=={versions.get(name)}"} == set()


def test_after_some_nights_each_page_has_had_its_turn() -> None:
    with_programs = {page.name for page in pages() if page.programs}
    nights = [[page.name for page in sample(6, day)] for day in range(100, 100 + -(-len(with_programs) // 6))]
    assert all(len(set(night)) == 6 for night in nights)
    assert set().union(*nights) == with_programs


def test_the_night_runs_a_sample() -> None:
    assert "python -m ci.findings --tonight" in (ROOT / ".github/workflows/nightly-gpu.yml").read_text()


@pytest.mark.parametrize(
    ("stated", "printed"),
    [
        ("the gradient is off by 73%", "the gradient is off by 74%"),
        ("off by 2.4e-07", "off by 2.9e-07"),
        ("loss 0.500685", "loss 0.500690"),
        ("rank 0: [...], custom code: True", "rank 0: [1e+38, 0.0], custom code: True"),
        ("[...] RuntimeError: no", "[rank0]: RuntimeError: no"),
    ],
)
def test_a_printed_line_agrees(stated: str, printed: str) -> None:
    assert alike(stated, printed)
    assert missing([stated, "..."], ["a warning", f"  {printed}"]) == []


@pytest.mark.parametrize(
    ("stated", "printed"),
    [
        ("the gradient is off by 73%", "the gradient is off by 0%"),
        ("rank 0: 1.0", "rank 1: 1.0"),
        ("off by 3.7e-02", "off by 2.4e-07"),
        ("custom code: True", "custom code: False"),
        ("done", "not done"),
    ],
)
def test_a_printed_line_differs(stated: str, printed: str) -> None:
    assert missing([stated], [printed]) == [stated]


def test_a_line_that_is_stated_twice_must_be_printed_twice() -> None:
    assert missing(["rank 1: -2.0", "rank 1: -2.0"], ["rank 1: -2.0"]) == ["rank 1: -2.0"]


def test_a_page_whose_program_prints_something_else_is_red(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = "# A page\n\n- **Needs**: `pip install torch==2.13.0`\n\n"
    page += "```python\nprint(1 + 1)\n```\n\n    $ python script.py\n"
    monkeypatch.setattr(findings, "PAGES", tmp_path)
    (tmp_path / "right.md").write_text(f"{page}    2\n")
    (tmp_path / "wrong.md").write_text(f"{page}    3\n")
    assert findings.main(["--here", "right"]) == 0
    assert findings.main(["--here", "right", "docs/findings/wrong.md"]) == 1
    assert capsys.readouterr().out.splitlines()[-4:] == [
        "wrong, program 1: not printed:",
        "3",
        "but this was:",
        "2",
    ]


@pytest.mark.group("packages")
@pytest.mark.parametrize("page", HERE, ids=lambda page: page.name)
def test_a_page_about_torch_alone_prints_what_it_states(page: Page) -> None:
    """Until torch mends it: then the page says so, and the ledger's entries go."""
    assert findings.check(page, Path(sys.executable).parent) == []


def test_the_list_of_findings_has_each_page() -> None:
    listed = (PAGES / "README.md").read_text()
    assert {page.name for page in pages() if f"]({page.name}.md)" not in listed} == set()
    assert read("ddp").name == "ddp"
