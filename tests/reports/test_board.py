"""``everyrank board``: subjects side by side, what it counts, and that no text of a run breaks its page."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from everyrank.cli import main
from everyrank.model.outcome import Ending
from everyrank.reports.board.badges import file_name
from everyrank.reports.board.board import Row, board
from everyrank.reports.board.render import as_html, as_markdown
from everyrank.reports.errors import ReportError
from everyrank.reports.runfile.model import CaseLine, LedgerPart
from everyrank.reports.runfile.read import Run, read

from tests.made_up_runs import NASTY, case, header, made_up, run_of

MINE, THEIRS = "mine.Optimizer", "theirs.Optimizer"


def _run(path: Path, *cases: CaseLine, packages: dict[str, str] | None = None) -> Run:
    subjects = {case.subject: "" for case in cases if case.subject}
    return read(run_of(header(subjects=subjects, packages=packages or {}), list(cases)).write(path))


def _cases(subject: str, *endings: Ending, law: str = "state.kept") -> list[CaseLine]:
    return [case(law, f"SGD-{number}", ending, subject=subject) for number, ending in enumerate(endings)]


def _rows(*runs: Run, before: tuple[Run, ...] = ()) -> list[Row]:
    return [row for table in board(runs, before) for row in table.rows]


def test_a_row_is_a_subject_and_a_column_a_group_of_laws(tmp_path: Path) -> None:
    mine = _run(tmp_path / "a", *_cases(MINE, "pass", "fail"), case("clip", subject=MINE), case("state.reshard"))
    theirs = _run(tmp_path / "b", *_cases(THEIRS, "known"), packages={THEIRS: "theirs 1.2"})
    (table,) = board([theirs, mine])
    assert table.groups == ("state", "clip")
    assert [(row.subject, row.package) for row in table.rows] == [(MINE, ""), (THEIRS, "theirs 1.2")]
    first = table.rows[0].cells["state"]
    assert (first.holds, first.asked, first.red, first.worst) == (2, 3, 1, "fail")
    assert [found.outcome for found in first.opened] == ["fail"]
    assert (table.rows[0].total.holds, table.rows[0].total.asked) == (3, 4)


def test_each_contract_has_a_table(tmp_path: Path) -> None:
    run = _run(tmp_path / "a", case(subject=MINE), case(subject=MINE, contract="replicate"), case(subject=""))
    assert [table.contract for table in board([run])] == ["replicate", "rpc-optimizer"]


def test_an_earlier_board_is_compared_cell_by_cell(tmp_path: Path) -> None:
    old = _run(tmp_path / "old", *_cases(MINE, "fail", "fail", "pass"), *_cases(THEIRS, "pass"))
    new = _run(tmp_path / "new", *_cases(MINE, "pass", "pass", "pass"), *_cases(MINE, "crash", law="clip"))
    (row,) = _rows(new, before=(old,))
    assert (row.cells["state"].change, row.cells["clip"].change) == (-2, 0)
    assert "<b>-2 red</b>" in as_html(board([new], [old]))


@pytest.mark.parametrize(
    ("endings", "shown"),
    [
        (["pass", "approximate"], "2"),
        (["pass", "fail"], "1 of 2"),
        (["pass", "unsupported"], "1"),
        (["unsupported"], "lacks"),
        (["not-applicable", "skipped"], "-"),
        (["pass", "skipped"], "1"),
        (["not-run"], "0 of 1"),
    ],
)
def test_a_cell_in_short(endings: list[Ending], shown: str, tmp_path: Path) -> None:
    text = as_markdown(board([_run(tmp_path / "a", *_cases(MINE, *endings))]))
    assert text.splitlines()[2:] == [
        "| subject | package | state | all |",
        "|---|---|---|---|",
        f"| {MINE} | torch 2.13.0+cpu | {shown} | {shown} |",
    ]


def test_two_runs_with_one_subject_are_refused_and_a_run_without_any(tmp_path: Path) -> None:
    run, again = (_run(tmp_path / name, case(subject=MINE)) for name in "ab")
    with pytest.raises(ReportError, match=re.escape(f"b: the subject '{MINE}' is also in {tmp_path / 'a'}")):
        board([run, again])
    with pytest.raises(ReportError, match="no case of a subject"):
        board([_run(tmp_path / "c", case(subject="", law="", contract=""))])


def test_a_known_deviation_shows_its_cause_and_link_and_a_red_one_its_failure(tmp_path: Path) -> None:
    entry = LedgerPart("fail", "https://example.org/issues/1", "the hook fires twice", link="javascript:alert(1)")
    known = case("clip", outcome="known", subject=MINE, message="step 1: off by 2", ledger=entry)
    red = case("clip", "Adam", "fail", subject=MINE, message="step 2: off by 3", text="all of it", repeat="pytest x")
    page = as_html(board([_run(tmp_path / "a", known, red)]))
    assert '<a href="https://example.org/issues/1">' in page
    assert "the hook fires twice" in page
    assert "javascript:" not in page
    assert page.index("step 2: off by 3") < page.index("step 1: off by 2"), "the urgent one is first"
    assert "not looked into" in page.partition("step 2")[2].partition("</article>")[0]
    assert all(part in page for part in ("<pre>all of it</pre>", "<pre>pytest x</pre>"))


class _Scripts(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = {name for name, _ in attrs}
        if tag in ("script", "img", "iframe") or any(name.startswith("on") for name in names):
            self.found.append(f"{tag} {sorted(names)}")


def test_no_text_of_a_run_becomes_markup(tmp_path: Path) -> None:
    nasty = [
        case("clip", f"SGD-{n}", "fail", subject=text[:60], message=text, text=text) for n, text in enumerate(NASTY)
    ]
    runs = [read(made_up(3, 300).write(tmp_path / "made-up")), _run(tmp_path / "nasty", *nasty)]
    parser = _Scripts()
    parser.feed(as_html(board(runs), title=NASTY[0]))
    assert parser.found == ["script []"], "the board's own script alone"


def test_the_command_writes_the_page_the_table_and_the_badges(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _run(tmp_path / "run.jsonl", *_cases(MINE, "pass"), *_cases("a/b c", "fail"))
    names = ("board.html", "board.md", "badges")
    page, table, badges = (str(tmp_path / name) for name in names)
    line = [str(tmp_path / "run.jsonl"), "-o", page, "--markdown", table, "--badges", badges, "--title", "All of it"]
    assert main(["board", *line]) == 0
    assert capsys.readouterr().out == f"{page}: 2 subjects of 1 contract; 2 badges in {badges}\n"
    assert "<title>All of it</title>" in Path(page).read_text()
    assert Path(table).read_text().startswith("### rpc-optimizer\n")
    assert {path.name for path in Path(badges).iterdir()} == {"mine.Optimizer.svg", "a-b-c.svg"}
    assert main(["board", str(tmp_path / "gone")]) == 2


@pytest.mark.parametrize(
    ("subject", "name"), [("a/../../b", "a-..-..-b"), ("..", "subject"), ("torch.ddp(x)", "torch.ddp-x")]
)
def test_a_badge_stays_in_its_folder(subject: str, name: str) -> None:
    assert file_name(subject) == name
