"""``everyrank diff`` as it is called: exit codes, forms, and what a person reads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import expecttest
import msgspec
import pytest
from everyrank.cli import main
from everyrank.model.outcome import Ending
from everyrank.reports.runfile.model import CaseLine, ErrorPart, SinglePart

from tests.made_up_runs import case, header, made_up, run_of


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _clips(seconds: float, relative: float) -> list[CaseLine]:
    """Cases of a law that takes so long and is so far off."""
    error = ErrorPart(relative / 2.2e-16, relative, relative, 3, "layers.0.weight", 1)
    exact = msgspec.structs.replace(error, ulps=0.0, absolute=0.0, relative=0.0)
    return [case(law="clip", label=f"SGD-{n}", seconds=seconds, error=error if n == 0 else exact) for n in range(6)]


def _two_nights(files: Path) -> None:
    rows: list[tuple[str, Ending, Ending | None]] = [
        ("SGD", "pass", "fail"), ("Adam", "pass", "fail"), ("Muon", "known", "stale"), ("ASGD", "pass", None),
    ]  # fmt: skip
    why = {"message": "step 3, w on rank 1: 4 ULPs", "repeat": "pytest 'test_mine.py'"}
    was = [case(label=label, outcome=was) for label, was, _ in rows]
    now = [case(label=label, outcome=ends, **why) for label, _, ends in rows if ends]
    run_of(header(), [*was, *_clips(0.1, 0.0)]).write(files / "old.jsonl")
    run_of(header(torch="2.14.0"), [*now, case(label="NAdam"), *_clips(0.4, 4.4e-16)]).write(files / "new.jsonl")


def test_the_exit_is_1_on_regression_and_0_without(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _two_nights(files)
    assert main(["diff", "old.jsonl", "new.jsonl"]) == 1
    assert main(["diff", "new.jsonl", "old.jsonl"]) == 1  # a case is gone
    assert main(["diff", "new.jsonl", "old.jsonl", "--allow-gone"]) == 0
    assert main(["diff", "old.jsonl", "old.jsonl"]) == 0
    assert capsys.readouterr().out.endswith("no change\n")


def test_json_holds_every_change(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _two_nights(files)
    assert main(["diff", "old.jsonl", "new.jsonl", "--format=json"]) == 1
    data = msgspec.json.decode(capsys.readouterr().out)
    assert data["regressed"] is True
    assert data["counts"] == {"regression": 2, "stale": 1, "fix": 0, "changed": 0, "new": 1, "gone": 1}
    assert [(change["kind"], change["from"], change["to"]) for change in data["changes"]] == [
        ("regression", "pass", "fail"), ("regression", "pass", "fail"), ("stale", "known", "stale"),
        ("new", None, "pass"), ("gone", "pass", None),
    ]  # fmt: skip
    assert data["changes"][0]["repeat"] == "pytest 'test_mine.py'"


def _night(files: Path, name: str, started: float, *endings: Ending, **footer: Any) -> None:
    """A run with a case for each ending, and a footer that says more."""
    made = run_of(
        header(started=started), [case(label=f"SGD-{n}", outcome=outcome) for n, outcome in enumerate(endings)]
    )
    assert made.footer is not None
    replace(made, footer=msgspec.structs.replace(made.footer, **footer)).write(files / name)


_NOVEMBER = 1_795_219_200.0  # 2026-11-21
_DAY = 86_400.0


@pytest.mark.parametrize(
    ("old", "new", "sign", "sentence"),
    [
        (["fail"] * 3 + ["pass"], ["fail"] * 3 + ["pass"], ":warning:", "no regression, 3 still red since 11-21"),
        (["fail", "fail"], ["fail", "pass"], ":warning:", "no regression, 1 still red since 11-21, 1 fix"),
        (["fail", "pass"], ["fail", "fail"], ":x:", "1 regression, 1 still red since 11-21"),
        (["known", "fail"], ["stale", "fail"], ":x:", "1 stale declaration, 1 still red since 11-21"),
        (["fail", "pass"], ["pass", "pass"], ":white_check_mark:", "1 fix"),
        (["pass"], ["pass"], ":white_check_mark:", "no change"),
        (["pass", "pass"], ["pass"], ":x:", "1 case gone"),
        (["pass"], ["skipped"], ":x:", "nothing ran, 1 case of another kind"),
    ],
)
def test_a_tick_never_stands_over_a_night_that_is_still_red(
    files: Path, capsys: pytest.CaptureFixture[str], old: list[Ending], new: list[Ending], sign: str, sentence: str
) -> None:
    _night(files, "old.jsonl", _NOVEMBER, *old)
    _night(files, "new.jsonl", _NOVEMBER + _DAY, *new)
    assert main(["diff", "old.jsonl", "new.jsonl"]) == (sign == ":x:")
    assert capsys.readouterr().out.splitlines()[-1] == sentence
    assert main(["diff", "old.jsonl", "new.jsonl", "--format=markdown"]) == (sign == ":x:")
    assert capsys.readouterr().out.splitlines()[0] == f"### {sign} everyrank: {sentence}"


def test_red_since_last_year_names_the_year(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _night(files, "old.jsonl", _NOVEMBER, "fail")
    _night(files, "new.jsonl", _NOVEMBER + 60 * _DAY, "fail")
    assert main(["diff", "old.jsonl", "new.jsonl"]) == 0
    assert capsys.readouterr().out.endswith("no regression, 1 still red since 2026-11-21\n")


def test_trouble_beside_the_cases_fails_each_night_and_is_named_as_new_once(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    single = SinglePart(passed=1, failed=1, failures=["test_a.py::test_x"])
    two = SinglePart(failed=2, failures=["test_a.py::test_x", "test_a.py::test_y"])
    _night(files, "0.jsonl", _NOVEMBER, "pass")
    _night(files, "1.jsonl", _NOVEMBER + _DAY, "pass", exit=1, single=single)
    _night(files, "2.jsonl", _NOVEMBER + 2 * _DAY, "pass", exit=1, single=two)
    assert main(["diff", "0.jsonl", "1.jsonl"]) == 1
    out = capsys.readouterr().out
    assert "new trouble: test_a.py::test_x failed, in one process" in out
    assert out.endswith("\n1 new trouble beside the cases\n")
    assert main(["diff", "1.jsonl", "1.jsonl"]) == 1
    assert capsys.readouterr().out.endswith("\nno regression, 1 trouble beside the cases as before\n")
    assert main(["diff", "1.jsonl", "2.jsonl"]) == 1
    out = capsys.readouterr().out
    assert "test_y failed" in out
    assert "test_x failed" not in out
    assert out.endswith("\n1 new trouble beside the cases, 1 trouble beside the cases as before\n")
    assert main(["diff", "2.jsonl", "0.jsonl"]) == 0


def test_of_very_many_new_troubles_the_first_are_named(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    many = SinglePart(failed=60, failures=[f"test_a.py::test_{number:02}" for number in range(60)])
    _night(files, "0.jsonl", _NOVEMBER, "pass")
    _night(files, "1.jsonl", _NOVEMBER + _DAY, "pass", exit=1, single=many)
    assert main(["diff", "0.jsonl", "1.jsonl"]) == 1
    out = capsys.readouterr().out
    assert out.count("new trouble: ") == 20
    assert "... and 40 more" in out
    assert out.endswith("\n60 new troubles beside the cases\n")


def test_a_run_that_was_interrupted_shows_as_little_the_second_time(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(2):
        _night(files, f"{number}.jsonl", _NOVEMBER, "pass", exit=2, interrupted="KeyboardInterrupt")
    assert main(["diff", "0.jsonl", "1.jsonl"]) == 1
    assert "new trouble: interrupted: KeyboardInterrupt" in capsys.readouterr().out


def test_the_output_is_a_file_where_one_is_named(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _two_nights(files)
    assert main(["diff", "old.jsonl", "new.jsonl", "-o", "diff.txt"]) == 1
    assert capsys.readouterr().out == ""
    assert "2 regressions" in (files / "diff.txt").read_text()


def test_the_output_never_replaces_a_run_file(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _two_nights(files)
    before = (files / "old.jsonl").read_bytes()
    (files / "link.txt").symlink_to("old.jsonl")
    for name in ("old.jsonl", "./new.jsonl", "link.txt"):
        assert main(["diff", "old.jsonl", "new.jsonl", "-o", name]) == 2
    assert (files / "old.jsonl").read_bytes() == before
    assert "is an input of the command" in capsys.readouterr().err


@pytest.mark.parametrize("bad", ["missing.jsonl", "empty.jsonl", "killed.jsonl", "."])
def test_bad_input_is_one_line_and_overwrites_nothing(
    files: Path, capsys: pytest.CaptureFixture[str], bad: str
) -> None:
    _two_nights(files)
    (files / "empty.jsonl").write_bytes(b"")
    (files / "diff.txt").write_text("of last night")
    made_up(cases=9).cut_after(2).write(files / "killed.jsonl")
    for pair in (["old.jsonl", bad], [bad, "new.jsonl"]):
        assert main(["diff", *pair, "-o", "diff.txt"]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        assert err.startswith(f"everyrank diff: {bad}: ")
    assert (files / "diff.txt").read_text() == "of last night"
    assert sorted(path.name for path in files.iterdir() if "tmp" in path.name) == []


def test_killed_runs_are_compared_with_partial(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = run_of(header(), [case(label=label) for label in ("SGD", "Adam", "Muon")])
    whole.write(files / "old.jsonl")
    whole.cut_after(2).write(files / "new.jsonl")
    assert main(["diff", "old.jsonl", "new.jsonl", "--partial"]) == 1
    out = capsys.readouterr().out
    assert "NOT WHOLE, 2 of 3 cases reported" in out
    assert "1 case pass -> not-run" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--alias", "none.pos"], "an alias is written OLD=NEW"),
        (["--alias", "no.such=law"], "names a law of which the older run has no case"),
        (["--aliases", "missing.toml"], "missing.toml: cannot be read"),
        (["--aliases", "bad.toml"], "bad.toml: not TOML"),
        (["--aliases", "other.toml"], "unknown table 'known'"),
        (["--aliases", "odd.toml"], '[laws] holds lines such as "old" = "new"'),
        (["--aliases", "circle.toml"], "the aliases form a circle: a = b = a"),
    ],
)
def test_bad_aliases_are_refused(
    files: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    _two_nights(files)
    (files / "bad.toml").write_text("[laws\n")
    (files / "other.toml").write_text("[[known]]\ncase = 'a'\n")
    (files / "odd.toml").write_text("[laws]\na = 1\n")
    (files / "circle.toml").write_text('[laws]\na = "b"\nb = "a"\n')
    assert main(["diff", "old.jsonl", "new.jsonl", *arguments]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_aliases_come_from_a_file_and_from_the_command_line(files: Path) -> None:
    run_of(header(), [case(law="none.pos"), case(law="a", subject="mine.A")]).write(files / "old.jsonl")
    run_of(header(), [case(law="none.position"), case(law="b", subject="mine.B")]).write(files / "new.jsonl")
    (files / "renamed.toml").write_text('[laws]\n"none.pos" = "none.position"\n[subjects]\n"mine.A" = "mine.B"\n')
    assert main(["diff", "old.jsonl", "new.jsonl", "--aliases=renamed.toml", "--alias=a=b", "-o", "diff.txt"]) == 0
    assert (files / "diff.txt").read_text().endswith("no change\n")


def test_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["diff", "--help"])
    assert caught.value.code == 0
    assert "list the cases that regressed" in capsys.readouterr().out


@pytest.mark.parametrize("number", ["-1", "many"])
def test_a_number_that_is_none_is_refused_in_words(capsys: pytest.CaptureFixture[str], number: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["diff", "old.jsonl", "new.jsonl", f"--most={number}"])
    assert caught.value.code == 2
    assert f"argument --most: must be a number of cases, 0 or more, not '{number}'" in capsys.readouterr().err


def _all_texts(line: CaseLine) -> CaseLine:
    nasty = "<script>`|\x1b[31m\n# heading @everybody </details> \u2028"
    return msgspec.structs.replace(line, message=nasty, repeat=nasty)


def test_what_tests_say_stays_text_in_markdown_and_in_a_terminal(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nasty = {"subject": "mine.<script>`|\x1b[1m", "label": "SGD-\x07<b>@all"}
    run_of(header(), [case(**nasty)]).write(files / "old.jsonl")
    run_of(header(), [_all_texts(case(outcome="fail", **nasty))]).write(files / "new.jsonl")
    for form in ("text", "markdown"):
        assert main(["diff", "old.jsonl", "new.jsonl", f"--format={form}"]) == 1
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert "\x07" not in out
        assert "\u2028" not in out
        assert "\n# heading" not in out
    spans = out.split("``")
    assert all("<script>" not in outside for outside in spans[::2]), spans[::2]


class TestTexts(expecttest.TestCase):
    """As a person reads them. EXPECTTEST_ACCEPT=1 writes them anew: then read them."""

    @pytest.fixture(autouse=True)
    def _nights(self, files: Path) -> None:
        _two_nights(files)
        self.files = files

    def output(self, form: str) -> str:
        assert main(["diff", "old.jsonl", "new.jsonl", f"--format={form}", "--most=1", "-o", "output"]) == 1
        return (self.files / "output").read_text()

    def test_as_text(self) -> None:
        self.assertExpectedInline(
            self.output("text"),
            """\
old: old.jsonl (2026-05-28 20:26 UTC, torch 2.13.0+cpu): 1 known, 9 pass
new: new.jsonl (2026-05-28 20:26 UTC, torch 2.14.0): 2 fail, 1 stale, 7 pass
torch: 2.13.0+cpu -> 2.14.0

2 regressions
  mine.Optimizer rpc-optimizer/parity.one-step: 2 cases pass -> fail
    [SGD-ws2], ... and 1 more
    step 3, w on rank 1: 4 ULPs
    to repeat: pytest 'test_mine.py'

1 stale declaration
  mine.Optimizer rpc-optimizer/parity.one-step: 1 case known -> stale
    [Muon-ws2]
    step 3, w on rank 1: 4 ULPs
    to repeat: pytest 'test_mine.py'

1 new case
  mine.Optimizer rpc-optimizer/parity.one-step: 1 case new: pass
    [NAdam-ws2]

1 case gone
  mine.Optimizer rpc-optimizer/parity.one-step: 1 case was pass
    [ASGD-ws2]

1 law slower
  mine.Optimizer rpc-optimizer/clip: the median of 6 cases 0.1 s -> 0.4 s (4.0x)

1 case less exact
  mine.Optimizer rpc-optimizer/clip[SGD-0-ws2]: exact -> 4.4e-16 (2 ULPs) at layers.0.weight, step 3, rank 1

2 regressions, 1 stale declaration, 1 new case, 1 case gone, 1 law slower, 1 case less exact
""",
        )

    def test_as_markdown(self) -> None:
        self.assertExpectedInline(
            self.output("markdown"),
            """\
### :x: everyrank: 2 regressions, 1 stale declaration, 1 new case, 1 case gone, 1 law slower, 1 case less exact

| outcome | old | new | |
|---|--:|--:|--:|
| fail | 0 | 2 | +2 |
| stale | 0 | 1 | +1 |
| known | 1 | 0 | -1 |
| pass | 9 | 7 | -2 |

Old: `old.jsonl` (2026-05-28 20:26 UTC, torch 2.13.0+cpu): 1 known, 9 pass

New: `new.jsonl` (2026-05-28 20:26 UTC, torch 2.14.0): 2 fail, 1 stale, 7 pass

torch: `2.13.0+cpu` -> `2.14.0`

<details open><summary>2 regressions</summary>

- `mine.Optimizer rpc-optimizer/parity.one-step`: 2 cases **pass -> fail**: `[SGD-ws2]` and 1 more
  - `step 3, w on rank 1: 4 ULPs`
  - to repeat: `pytest 'test_mine.py'`

</details>

<details open><summary>1 stale declaration</summary>

- `mine.Optimizer rpc-optimizer/parity.one-step`: 1 case **known -> stale**: `[Muon-ws2]`
  - `step 3, w on rank 1: 4 ULPs`
  - to repeat: `pytest 'test_mine.py'`

</details>

<details><summary>1 new case</summary>

- `mine.Optimizer rpc-optimizer/parity.one-step`: 1 case **new: pass**: `[NAdam-ws2]`

</details>

<details><summary>1 case gone</summary>

- `mine.Optimizer rpc-optimizer/parity.one-step`: 1 case **was pass**: `[ASGD-ws2]`

</details>

<details><summary>1 law slower</summary>

- `mine.Optimizer rpc-optimizer/clip`: the median of 6 cases 0.1 s -> 0.4 s (4.0x)

</details>

<details><summary>1 case less exact</summary>

- `mine.Optimizer rpc-optimizer/clip[SGD-0-ws2]`: exact -> 4.4e-16 (2 ULPs) at `layers.0.weight, step 3, rank 1`

</details>
""",
        )
