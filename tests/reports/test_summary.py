"""What a person sees of a run: the line at the foot of the terminal while it lasts, the summary at its end."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import expecttest
import pexpect
import pyte
import pytest
from everyrank.model.outcome import Ending
from everyrank.reports.live.progress import duration
from everyrank.reports.live.progress import text as progress_text
from everyrank.reports.live.summary import Summary, known, text, title
from everyrank.reports.live.tally import Tally
from everyrank.reports.runfile.conclusion import conclude
from everyrank.reports.runfile.model import CaseLine, DeviationPart, ErrorPart, Footer, LedgerPart

from tests.inner import Project
from tests.terminal import at_terminal


def _case(number: int, outcome: Ending, **more: Any) -> CaseLine:
    law = "parity.one-step" if number % 2 else "none.frozen"
    given: dict[str, Any] = {"subject": "mylib.MyOptimizer", "law": law, "seconds": number / 10, **more}
    return CaseLine(id=f"test_mine.py::test[{number}]", outcome=outcome, **given)


def _tally(*cases: CaseLine) -> Tally:
    tally = Tally()
    for case in cases:
        tally.add(case)
    return tally


def _mixed() -> Tally:
    off = ErrorPart(ulps=3.0, absolute=1e-9, relative=2e-10, step=3, name="layer0.weight", rank=1)
    written_up = ErrorPart(ulps=9.0, absolute=1.0, relative=1.0, step=1, name="layer0.weight", rank=0)
    return _tally(
        *(_case(number, "pass") for number in range(12)),
        _case(12, "fail", message="step 3, layer0.weight: off by 1e-09", error=off),
        _case(13, "crash", message="rank 1 of 2 was killed by SIGKILL"),
        _case(14, "known", error=written_up),
        _case(15, "fail", subject="mylib.Other", law="clip", message="the norm is that of one shard"),
        CaseLine(id="tests/test_plain.py::test_all_reduce", outcome="skipped", message="needs 4 GPUs, found 0"),
    )


class TestText(expecttest.TestCase):
    """Reviewed as people read it."""

    maxDiff = None

    def test_a_run_with_some_of_everything(self) -> None:
        self.assertExpectedInline(
            "\n".join([title(_mixed()), *text(_mixed())]),
            """\
everyrank: 3 not green
                     crash  fail  known  skipped  pass
mylib.MyOptimizer        1     1      1        .    12
mylib.Other              .     1      .        .     .
tests/test_plain.py      .     .      .        1     .
laws that are not green:
  mylib.MyOptimizer  none.frozen: 1 fail of 8
  mylib.MyOptimizer  parity.one-step: 1 crash of 7
  mylib.Other  clip: 1 fail of 1
worst:
  crash    test_mine.py::test[13]: rank 1 of 2 was killed by SIGKILL
  fail     test_mine.py::test[12]: step 3, layer0.weight: off by 1e-09
  fail     test_mine.py::test[15]: the norm is that of one shard
slowest:
     1.50 s  test_mine.py::test[15]
     1.40 s  test_mine.py::test[14]
     1.30 s  test_mine.py::test[13]
     1.20 s  test_mine.py::test[12]
     1.10 s  test_mine.py::test[11]
     1.00 s  test_mine.py::test[10]
     0.90 s  test_mine.py::test[9]
     0.80 s  test_mine.py::test[8]
     0.70 s  test_mine.py::test[7]
     0.60 s  test_mine.py::test[6]
largest errors that are in no ledger:
   2.0e-10, 3 ULPs  test_mine.py::test[12] (step 3, layer0.weight, rank 1)""",
        )

    def test_a_green_run(self) -> None:
        tally = _tally(_case(1, "pass"))
        self.assertExpectedInline(
            "\n".join([title(tally), *text(tally)]),
            """\
everyrank: all green
                   pass
mylib.MyOptimizer     1""",
        )

    def test_a_green_run_with_details(self) -> None:
        off = ErrorPart(ulps=3.0, absolute=1e-9, relative=2e-10, step=3, name="layer0.weight", rank=1)
        self.assertExpectedInline(
            "\n".join(text(_tally(_case(1, "pass", error=off)), details=True)),
            """\
                   pass
mylib.MyOptimizer     1
slowest:
     0.10 s  test_mine.py::test[1]
largest errors that are in no ledger:
   2.0e-10, 3 ULPs  test_mine.py::test[1] (step 3, layer0.weight, rank 1)""",
        )

    def test_ulps_are_left_out_where_they_are_many(self) -> None:
        errors = [ErrorPart(ulps, absolute=1.0, relative=0.5, step=1, name="w", rank=0) for ulps in (2e15, 3e5)]
        tally = _tally(*(_case(number, "pass", error=error) for number, error in enumerate(errors)))
        self.assertExpectedInline(
            "\n".join(text(tally, details=True)[-2:]),
            """\
   5.0e-01  test_mine.py::test[0] (step 1, w, rank 0)
   5.0e-01, 300000 ULPs  test_mine.py::test[1] (step 1, w, rank 0)""",
        )

    def test_the_live_line(self) -> None:
        lines = [progress_text(_mixed(), 5_915, 12, 0.8), progress_text(_tally(_case(1, "pass")), 1, 1, 2.0)]
        self.assertExpectedInline(
            "\n".join(lines),
            """\
everyrank: 17 of 5,915 (0%), 3 not green, 12 worlds up, 21.2 a second, 4:38 left
everyrank: 1 of 1 (100%), 1 world up, 0.5 a second, 0:00 left""",
        )


def test_the_most_urgent_of_many_red_cases_are_named_and_the_rest_counted() -> None:
    tally = _tally(*(_case(number, "fail") for number in range(30)), _case(30, "timeout"), _case(31, "crash"))
    lines = text(tally)
    start = lines.index("worst:")
    assert lines[start + 1].startswith("  crash    test_mine.py::test[31]")
    assert lines[start + 2].startswith("  timeout  test_mine.py::test[30]")
    assert lines[start + 3].startswith("  fail     test_mine.py::test[0]")
    assert lines[start + 11] == "  ... and 22 more"


def test_the_slowest_are_named_slowest_first_and_never_more_than_ten() -> None:
    lines = text(_tally(*(_case(number, "pass") for number in range(50))), details=True)
    start = lines.index("slowest:")
    assert lines[start + 1 :] == [
        f"     {number / 10:.2f} s  test_mine.py::test[{number}]" for number in range(49, 39, -1)
    ]


@pytest.mark.parametrize(("seconds", "expected"), [(0.4, "0:00"), (59.6, "1:00"), (220, "3:40"), (3723, "1:02:03")])
def test_durations(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected


def _printed(tally: Tally, file: str = "", verbosity: int = 0, exit: int = 0) -> list[str]:
    """Return what is printed at the end of a run."""
    lines: list[str] = []
    config: Any = SimpleNamespace(get_verbosity=lambda: verbosity, getoption=lambda name, default: default)
    run = SimpleNamespace(trouble="", conclusion=conclude(tally.outcomes, Footer({}, 1.0, exit)))
    reporter = SimpleNamespace(write_sep=lambda mark, line: lines.append(line), write_line=lines.append)
    Summary(config, tally, Path.cwd() / file if file else None, run).pytest_terminal_summary(reporter)
    return lines


def _plain(outcome: Ending) -> Tally:
    return _tally(CaseLine(id="test_x.py::test_1", outcome=outcome, seconds=1.0))


def test_a_few_tests_of_no_subject_say_nothing_unless_a_run_file_was_asked_for() -> None:
    assert _printed(_tally()) == _printed(_plain("pass")) == []
    assert _printed(_plain("pass"), "out/run.jsonl") == [
        *("everyrank: 1 multi-rank test, all green", "           pass", "test_x.py     1"),
        *("run file: out/run.jsonl", "to view it: everyrank page out/run.jsonl -o report.html"),
    ]
    assert _printed(_tally(), "run.jsonl")[0] == "run file: run.jsonl"
    assert "slowest:" in _printed(_plain("pass"), "run.jsonl", verbosity=1)
    assert _printed(_plain("pass"), "run.jsonl", verbosity=-1) == ["run file: run.jsonl"]
    assert _printed(_tally(_case(1, "pass")))[0] == "everyrank: all green"


@pytest.mark.parametrize(
    ("outcome", "exit", "title"),
    [("pass", 1, "none red, but pytest ended with 1"), ("skipped", 0, "nothing ran"), ("fail", 1, "1 not green")],
)
def test_the_terminals_last_word_is_no_greener_than_the_run(outcome: Ending, exit: int, title: str) -> None:
    assert _printed(_plain(outcome), "run.jsonl", exit=exit)[0] == f"everyrank: 1 multi-rank test, {title}"


# --- in a run ----------------------------------------------------------------------------------------

_TESTS = """
    import pytest

    @pytest.mark.world(2)
    @pytest.mark.parametrize("number", range(40))
    def test_many(number): pass

    def test_single(): pass
"""


def test_a_run_prints_its_summary_and_no_live_line_where_the_output_is_no_terminal(project: Project) -> None:
    project.write("test_inner.py", _TESTS)
    project.write("conftest.py", "import everyrank.reports.live.progress as progress; progress.AFTER = 0")
    out = project.run("-k", "3", "--run-file=run.jsonl").out
    assert "= everyrank: 13 multi-rank tests, all green =" in out
    assert "\nto view it: everyrank page run.jsonl -o report.html\n" in out
    assert "\x1b" not in out


def _at_terminal(project: Project, *arguments: str) -> tuple[list[list[str]], int]:
    """What a person sees: the screen after each piece of output, and the exit status."""
    command = project.command(*arguments)
    screen = pyte.Screen(100, 24)
    stream = pyte.Stream(screen)
    environment: Any = {**project.environment(), "TERM": "xterm"}
    del environment["COLUMNS"]
    child = at_terminal(project, command, environment, rows=24, columns=100, timeout=240)
    seen: list[list[str]] = []
    while True:
        try:
            stream.feed(child.read_nonblocking(4096, timeout=240))
        except pexpect.EOF:
            break
        seen.append(list(screen.display))
    child.close()
    project.assert_nothing_left()
    return seen, child.exitstatus


@pytest.mark.parametrize("more", [[], ["-n", "2"]], ids=["alone", "workers"])
def test_at_a_terminal_the_last_row_shows_the_progress_of_the_run(project: Project, more: list[str]) -> None:
    project.write("test_inner.py", _TESTS)
    project.write("conftest.py", "import everyrank.reports.live.progress as progress; progress.AFTER = 0")
    seen, code = _at_terminal(project, *more)
    assert code == 0
    rows = [screen[-1].strip() for screen in seen]
    live = [row for row in rows if row.startswith("everyrank: ")]
    assert live, "\n".join(seen[-1])
    assert " of 40 (" in live[-1]
    assert " up, " in live[-1]
    assert live[-1].endswith("left")
    # What pytest prints is as it always is, and the row is given back.
    last = "\n".join(seen[-1])
    assert "everyrank: " not in last
    assert "41 passed" in last
    assert "test_inner.py " in last or more


def test_a_debugger_has_the_terminal_to_itself(project: Project) -> None:
    project.write("test_inner.py", _TESTS)
    project.write("conftest.py", "import everyrank.reports.live.progress as progress; progress.AFTER = 0")
    seen, code = _at_terminal(project, "--pdb", "-k", "3")
    assert code == 0
    assert not any("everyrank: " in screen[-1] for screen in seen)


def test_tests_of_one_name_in_two_files_are_distinguished() -> None:
    tests = [
        CaseLine(id=f"{file}::test_sum", outcome="fail", message="no") for file in ("a/test_x.py", "b/test_x.py")
    ]
    printed = "\n".join(text(_tally(*tests)))
    for file in ("a/test_x.py", "b/test_x.py"):
        assert f"{file}::test_sum: no" in printed
        assert any(line.startswith(f"{file} ") for line in printed.splitlines())


def test_what_a_ledger_knows_is_shown_as_it_was_seen() -> None:
    ledger = LedgerPart("fail", "unreported", "does not move")
    seen = [DeviationPart("step 1, a: off by 3", [0, 1]), DeviationPart("step 1, b: off by 4", [2])]
    cases = [_case(number, "known", ledger=ledger, deviations=seen, case=f"c/l[{number}]") for number in range(3)]
    assert known(_tally(*cases, _case(9, "pass"))) == [
        "known deviations, seen again:",
        "  mylib.MyOptimizer  does not move: 3, such as\n    c/l[0]: step 1, a: off by 3",
    ]
    assert known(_tally(_case(9, "pass"))) == []
