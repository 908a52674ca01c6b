"""The conclusion of a whole run: the table, row by row, and the same answer from all that read it."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from everyrank.cli import main
from everyrank.model.outcome import RED, Ending
from everyrank.reports.live.single_process import NAMED, SingleProcessTests
from everyrank.reports.page.build import page
from everyrank.reports.runfile.conclusion import BESIDE, Conclusion, conclude, conclude_together
from everyrank.reports.runfile.model import Footer, SinglePart
from everyrank.reports.runfile.read import read

from tests.chromium import Browser
from tests.inner import Project
from tests.made_up_runs import MadeUp, case, header, run_of

_GOOD: dict[Ending, int] = {"pass": 2, "known": 1}


def _footer(exit: int = 0, **more: Any) -> Footer:
    return Footer(counts={}, seconds=1.0, exit=exit, **more)


_BROKEN = "test_broken.py could not be collected"
_TWO_FAILED = SinglePart(passed=3, failed=2, failures=["test_a.py::test_x", "test_a.py::test_y"])

#: counts, footer (None: there is none), state, what is said
TABLE: list[tuple[dict[Ending, int], Footer | None, str, list[str]]] = [
    (_GOOD, _footer(), "as-declared", []),
    ({"pass": 1, "skipped": 5, "not-applicable": 1}, _footer(), "as-declared", []),
    (_GOOD, _footer(single=SinglePart(passed=7, skipped=1)), "as-declared", []),
    ({"pass": 1, "fail": 1}, _footer(1), "not-as-declared", ["1 of 2 cases needs a person"]),
    ({"pass": 2, "stale": 2}, _footer(), "not-as-declared", ["2 of 4 cases need a person"]),
    (_GOOD, None, "not-whole", ["the run did not finish: 3 of 3 cases reported"]),
    (
        {"pass": 2, "not-run": 1},
        None,
        "not-as-declared",
        ["the run did not finish: 3 of 3 cases reported", "1 of 3 cases needs a person"],
    ),
    (_GOOD, _footer(2, troubles=[_BROKEN]), "not-as-declared", [f"1 trouble beside the cases: {_BROKEN}"]),
    (_GOOD, _footer(0, troubles=[_BROKEN]), "not-as-declared", [f"1 trouble beside the cases: {_BROKEN}"]),
    (
        _GOOD,
        _footer(2, troubles=["a", "b", "c", "d", "e"]),
        "not-as-declared",
        ["5 troubles beside the cases: a; b; c; and 2 more"],
    ),
    (_GOOD, _footer(2, interrupted="Ctrl-C"), "not-as-declared", ["the run was interrupted: Ctrl-C"]),
    (_GOOD, _footer(7, interrupted="enough"), "not-as-declared", ["the run was interrupted: enough"]),
    (
        _GOOD,
        _footer(1, single=_TWO_FAILED),
        "not-as-declared",
        ["2 single-process tests failed: test_a.py::test_x, test_a.py::test_y"],
    ),
    (
        _GOOD,
        _footer(1, single=SinglePart(failed=200, failures=list("abcde"))),
        "not-as-declared",
        ["200 single-process tests failed: a, b, c, and 197 more"],
    ),
    (
        _GOOD,
        _footer(1),
        "not-as-declared",
        ["pytest ended with 1 (tests failed), for a reason that is in no line of the run file"],
    ),
    (_GOOD, _footer(2), "not-as-declared", ["pytest ended with 2 (interrupted)"]),
    (_GOOD, _footer(3), "not-as-declared", ["pytest ended with 3 (an internal error)"]),
    (_GOOD, _footer(5), "not-as-declared", ["pytest ended with 5 (no tests were collected)"]),
    (_GOOD, _footer(77), "not-as-declared", ["pytest ended with 77"]),
    (
        {"fail": 1},
        _footer(3),
        "not-as-declared",
        ["1 of 1 case needs a person", "pytest ended with 3 (an internal error)"],
    ),
    ({}, _footer(), "nothing-ran", ["nothing ran"]),
    ({}, _footer(5), "nothing-ran", ["nothing ran"]),
    (
        {},
        _footer(single=SinglePart(passed=2)),
        "nothing-ran",
        ["nothing ran on several ranks: 2 single-process tests"],
    ),
    (
        {"skipped": 3},
        _footer(),
        "nothing-ran",
        ["nothing ran: none of 3 cases was tried"],
    ),
    (
        {},
        _footer(2, troubles=[_BROKEN]),
        "not-as-declared",
        [f"1 trouble beside the cases: {_BROKEN}", "nothing ran"],
    ),
    ({}, None, "not-whole", ["the run did not finish: 3 of 3 cases reported", "nothing ran"]),
]


@pytest.mark.parametrize(("counts", "footer", "state", "reasons"), TABLE)
def test_each_row_of_the_table(
    counts: dict[Ending, int], footer: Footer | None, state: str, reasons: list[str]
) -> None:
    found = conclude(counts, footer, "3 of 3 cases reported")
    assert (found.state, [reason.text for reason in found.reasons]) == (state, reasons)
    assert found.as_declared == (not reasons)
    assert all(reason.brief and reason.details for reason in found.beside)


def test_nothing_red_and_no_exit_status_but_0_is_as_declared() -> None:
    for ending in RED:
        assert not conclude({"pass": 5, ending: 1}, _footer(0)).as_declared
    for exit in range(1, 8):
        assert not conclude(_GOOD, _footer(exit)).as_declared


def test_parts_of_one_run_are_as_good_as_the_worst_of_them() -> None:
    good, empty = conclude(_GOOD, _footer()), conclude({}, _footer())
    assert conclude_together([("a", good)], _GOOD) == ("as-declared", [("All 3 cases", " ended as declared")])
    state, sentences = conclude_together([("a", good), ("b", empty)], _GOOD)
    assert (state, sentences) == ("nothing-ran", [("b: nothing ran", "")])
    red = conclude({"fail": 1}, _footer(1))
    both: dict[Ending, int] = {"fail": 2}
    assert conclude_together([("a", red), ("b", red)], both)[1] == [("2 of 2 cases", " need a person")]


# --- the same answer everywhere ------------------------------------------------------------------------


def _run(folder: Path, name: str = "run", started: float = 1_780_000_000.0, **footer: Any) -> Path:
    """A run whose cases are all good, with a footer that says more."""
    made = run_of(header(started=started), [case(), case(label="Adam")])
    assert made.footer is not None
    end = Footer(made.footer.counts, 1.0, **{"exit": 0, **footer})
    return MadeUp(made.header, made.cases, end).write(folder / f"{name}.jsonl")


#: what is wrong beside the cases: the footer, and what is said of it
WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "not collected": ({"exit": 2, "troubles": [_BROKEN]}, _BROKEN),
    "interrupted": ({"exit": 2, "interrupted": "Ctrl-C"}, "interrupted"),
    "one process": ({"exit": 1, "single": SinglePart(failed=1, failures=["test_a.py::test_x"])}, "test_a.py::test_x"),
    "exit status": ({"exit": 3}, "pytest ended with 3"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_beside_the_cases_is_seen_by_all_that_read_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wrong: str
) -> None:
    footer, message = WRONG[wrong]
    good, bad = str(_run(tmp_path, "good")), str(_run(tmp_path, "bad", 1_780_086_400.0, **footer))
    assert not read(bad).conclusion.as_declared
    assert main(["page", bad, "-o", str(tmp_path / "report.html")]) == 0
    out = capsys.readouterr().out
    assert message in out
    assert "as declared" not in out
    assert '"state":"not-as-declared"' in (tmp_path / "report.html").read_text()
    assert main(["badge", bad, "--subject=mine.Optimizer"]) == 0
    assert '"color":"red"' in capsys.readouterr().out
    for form in ("text", "markdown", "json"):
        assert main(["diff", good, bad, f"--format={form}"]) == 1
        out = capsys.readouterr().out
        assert message in out
        assert ":white_check_mark:" not in out
    assert main(["history", str(tmp_path)]) == 0
    assert message in capsys.readouterr().out


def test_all_commands_report_that_nothing_ran(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good = str(_run(tmp_path, "good"))
    empty = str(run_of(header(started=1_780_086_400.0), []).write(tmp_path / "nothing.jsonl"))
    assert main(["page", empty, "-o", str(tmp_path / "report.html")]) == 0
    assert "0 cases; nothing.jsonl: nothing ran" in capsys.readouterr().out
    assert '"state":"nothing-ran"' in (tmp_path / "report.html").read_text()
    assert main(["badge", empty, "--subject=mine.Optimizer"]) == 0
    out = capsys.readouterr().out
    assert '"message":"nothing ran"' in out
    assert '"color":"lightgrey"' in out
    for old in (good, empty):
        for more in ([], ["--allow-gone"]):
            assert main(["diff", old, empty, *more]) == 1
            assert "nothing ran" in capsys.readouterr().out
    assert main(["history", str(tmp_path)]) == 0
    assert "nothing ran" in capsys.readouterr().out


def _headline(browser: Browser, file: Path) -> tuple[str, str]:
    """The page's first sentence, and the colour of its start."""
    file.with_suffix(".html").write_text(page([read(file, partial=True)]))
    browser.open(file.with_suffix(".html"), view="findings")
    colour = "return getComputedStyle(document.querySelector('#sentence b')).color"
    assert ("all is as declared" in browser.text("#main")) == ("as declared" in browser.text("#sentence"))
    return browser.text("#sentence"), browser.js(colour)


def test_the_page_shows_it_in_its_first_sentence_and_by_colour(browser: Browser, tmp_path: Path) -> None:
    sentence, green = _headline(browser, _run(tmp_path, "good"))
    assert sentence == "All 2 cases ended as declared."
    sentence, red = _headline(browser, _run(tmp_path, "bad", **WRONG["one process"][0]))
    assert sentence == "1 single-process test failed: test_a.py::test_x."
    assert red != green
    for wrong in WRONG:
        assert _headline(browser, _run(tmp_path, "bad", **WRONG[wrong][0]))[1] == red
    sentence, grey = _headline(browser, run_of(header(), []).write(tmp_path / "empty.jsonl"))
    assert sentence == "Nothing ran."
    assert grey not in (green, red)
    cut = run_of(header(), [case(), case(label="Adam")]).cut_after(2).write(tmp_path / "cut.jsonl")
    assert _headline(browser, cut) == ("The run did not finish: 2 of 2 cases reported.", red)


# --- what the footer is made of ------------------------------------------------------------------------

_TESTS = """
    import pytest

    @pytest.mark.world(2)
    def test_of_two(): pass

    def test_of_one(): pass

    def test_fails(): assert 0

    def test_skips(): pytest.skip("no")

    @pytest.mark.xfail
    def test_as_expected(): assert 0

    @pytest.fixture
    def broken():
        yield
        raise RuntimeError

    def test_teardown(broken): pass
"""


def test_tests_of_one_process_are_counted_and_failures_named(project: Project) -> None:
    project.write("test_inner.py", _TESTS)
    inner = project.run("--run-file", "run.jsonl", "-n", "1")
    assert "= everyrank: 1 multi-rank test, none red, but 2 single-process tests failed =" in inner.out
    run = read(project.folder / "run.jsonl")
    assert run.footer is not None
    failures = ["test_inner.py::test_fails", "test_inner.py::test_teardown"]
    assert run.footer.single == SinglePart(passed=1, failed=2, skipped=2, failures=failures)
    assert [reason.kind for reason in run.conclusion.reasons] == ["single-process"]


def test_an_exit_status_that_a_plugin_sets_is_in_the_terminals_last_word(project: Project) -> None:
    project.write("test_inner.py", _TESTS)
    out = project.run("--run-file", "run.jsonl", "-k", "of_two or of_one", "--require-gpus=99").out
    assert "= everyrank: 1 multi-rank test, none red, but pytest ended with 1 =" in out


def test_an_exit_that_a_test_asked_for_is_an_interruption(project: Project) -> None:
    project.write(
        "test_inner.py",
        """
        import pytest

        @pytest.mark.world(2)
        def test_of_two(): pass
        """,
    )
    project.write(
        "conftest.py",
        """
        import pytest

        def pytest_runtest_logreport(report):
            if report.when == "teardown":
                pytest.exit("the disk is full", returncode=9)
        """,
    )
    project.run("--run-file", "run.jsonl", "-n", "1")
    footer = read(project.folder / "run.jsonl").footer
    assert footer is not None
    assert "the disk is full" in footer.interrupted


def test_ctrl_c_after_the_last_case_is_an_interruption(project: Project) -> None:
    project.write(
        "test_inner.py",
        f"""
        import os
        import pytest

        @pytest.mark.world(2)
        def test_of_two(): pass

        def test_of_one(): os.kill(os.getpid(), {signal.SIGINT:d})
        """,
    )
    project.run("--run-file", "run.jsonl")
    run = read(project.folder / "run.jsonl")
    assert run.counts == {"pass": 1}
    assert [reason.kind for reason in run.conclusion.reasons] == ["interrupted"]


class _Report:
    def __init__(self, id: str, when: str, outcome: str = "passed") -> None:
        self.nodeid, self.when, self.outcome = id, when, outcome


def test_a_test_that_is_run_again_counts_by_its_last_attempt() -> None:
    tests = SingleProcessTests()
    for when, outcome in (
        ("setup", "passed"), ("call", "rerun"), ("teardown", "passed"),
        ("setup", "passed"), ("call", "passed"), ("teardown", "passed"),
    ):  # fmt: skip
        tests.hear(_Report("a", when, outcome))
    assert tests.part() == SinglePart(passed=1)


def test_a_test_that_failed_and_was_never_torn_down_has_failed() -> None:
    tests = SingleProcessTests()
    tests.hear(_Report("a", "call", "failed"))
    tests.hear(_Report("b", "setup"))
    assert tests.part() == SinglePart(failed=1, failures=["a"])


def test_of_very_many_failures_the_first_by_name_are_named_whatever_their_order() -> None:
    tests = SingleProcessTests()
    for number in reversed(range(NAMED + 20)):
        tests.hear(_Report(f"test_{number:04}", "teardown", "failed"))
    part = tests.part()
    assert part is not None
    assert (part.failed, len(part.failures), part.failures[0]) == (NAMED + 20, NAMED, "test_0000")


def test_there_are_reasons_of_every_kind_that_is_beside_the_cases() -> None:
    found = {reason.kind for counts, footer, _, _ in TABLE for reason in conclude(counts, footer).beside}
    assert found == BESIDE
    assert Conclusion("as-declared").beside == ()
