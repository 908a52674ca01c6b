"""``everyrank history``: each law over the nights, and an index that follows the files."""

from __future__ import annotations

import gzip
import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import expecttest
import msgspec
import pytest
from everyrank.cli import main
from everyrank.model.outcome import Ending
from everyrank.reports import errors
from everyrank.reports.history.history import History, LawHistory, of_folder
from everyrank.reports.history.index import NAME
from everyrank.reports.history.render import as_text
from everyrank.reports.runfile.model import CaseLine, ErrorPart

from tests.made_up_runs import MadeUp, case, header, run_of

DAY = 86_400.0
LETTERS: dict[str, Ending] = {
    ".": "pass", "F": "fail", "C": "crash", "k": "known", "n": "not-run", "s": "skipped", "S": "stale",
    "i": "interrupted",
}  # fmt: skip


def night(number: int, cases: Sequence[CaseLine], **more: Any) -> MadeUp:
    return run_of(header(started=1_780_000_000.0 + number * DAY, **more), cases)


def law(folder: Path, *nights: str, **more: Any) -> LawHistory:
    """A law whose cases end as the letters say, one text a night; a blank is a case that was not there."""
    for number, letters in enumerate(nights):
        cases = [case(label=f"SGD-{n}", outcome=LETTERS[letter]) for n, letter in enumerate(letters) if letter != " "]
        versions = {name: values[number] for name, values in more.items()}
        night(number, cases, **versions).write(folder / f"{number:03}.jsonl")
    (found,) = of_folder(folder).laws
    return found


# --- a law over the nights ---------------------------------------------------------------------------


def test_a_law_that_was_always_green_has_no_bad_night(tmp_path: Path) -> None:
    found = law(tmp_path, "..", ".k", "s.")
    assert (found.red, found.first_bad, found.since, found.flips, found.flake_rate) == (False, None, None, 0, 0)


def test_the_first_bad_night_and_the_one_since_which_it_is_red(tmp_path: Path) -> None:
    found = law(tmp_path, "..", "F.", "..", "..", ".C", ".F")
    assert (found.red, found.first_bad, found.since, found.flips) == (True, 1, 4, 3)


def test_a_law_that_was_mended_is_not_red(tmp_path: Path) -> None:
    found = law(tmp_path, "..", ".F", "SF", "..")
    assert (found.red, found.first_bad, found.since, found.flips) == (False, 1, None, 2)


@pytest.mark.parametrize("ended", ["n", "i"])
def test_a_night_that_did_not_run_it_to_its_end_has_no_state(tmp_path: Path, ended: str) -> None:
    found = law(tmp_path, ".", ended, ".", "F", ended, "F")
    assert found.states == ["green", "unknown", "green", "red", "unknown", "red"]
    assert (found.first_bad, found.since, found.flips) == (3, 3, 1)


def test_a_night_that_skipped_it_is_not_green_and_ends_no_red_streak(tmp_path: Path) -> None:
    found = law(tmp_path, ".", "F", "s", "F", "s")
    assert found.states == ["green", "red", "unknown", "red", "unknown"]
    assert (found.red, found.since, found.flips) == (True, 1, 1)
    assert (found.flipped, found.steps) == (1, 2)


def test_the_flake_rate_is_of_cases_and_steps_between_nights(tmp_path: Path) -> None:
    found = law(tmp_path, "....", "F...", "....", ".F..")
    assert (found.flipped, found.steps) == (3, 12)
    assert found.flake_rate == 3 / 12


def test_a_flip_that_comes_with_a_new_torch_or_kit_is_no_flake(tmp_path: Path) -> None:
    found = law(tmp_path, ".", "F", "F", ".", torch=["2.12", "2.13", "2.13", "2.13"], kit=["1", "1", "1", "2"])
    assert (found.flipped, found.flaked, found.flake_rate) == (2, 0, 0)


def test_a_regression_and_its_fix_that_come_with_commits_are_no_flakes(tmp_path: Path) -> None:
    found = law(tmp_path, ".", "F", "F", ".", commit=["a" * 40, "b" * 40, "b" * 40, "c" * 40])
    assert (found.flipped, found.flaked) == (2, 0)


def test_a_flip_at_the_same_commit_is_a_flake(tmp_path: Path) -> None:
    assert law(tmp_path, ".", "F", commit=["a" * 40] * 2).flaked == 1


def test_a_case_that_goes_on_flipping_is_flaky_whatever_is_committed(tmp_path: Path) -> None:
    found = law(tmp_path, *".F.F.", commit=[letter * 40 for letter in "abcde"])
    assert (found.flipped, found.flaked) == (4, 2)


def test_a_file_of_a_time_that_no_calendar_has_does_not_stop_the_history(tmp_path: Path) -> None:
    night(0, [case()]).write(tmp_path / "good.jsonl")
    run_of(header(started=1e18), [case()]).write(tmp_path / "hostile.jsonl")
    text = as_text(of_folder(tmp_path))
    assert "1 night from 2026-05-28" in text
    assert "hostile.jsonl:1: not a line of a run file: Expected `float` <= 253402300799.0" in text


def test_the_order_is_that_of_the_runs_not_of_the_names(tmp_path: Path) -> None:
    night(2, [case(outcome="fail")]).write(tmp_path / "a.jsonl")
    night(1, [case()]).write(tmp_path / "b.jsonl")
    found = of_folder(tmp_path)
    assert [night.path for night in found.nights] == ["b.jsonl", "a.jsonl"]
    assert found.laws[0].states == ["green", "red"]


def test_time_and_error_are_relative_to_the_nights_before(tmp_path: Path) -> None:
    for number, (seconds, relative) in enumerate([(0.1, 1e-16), (0.1, 1e-16), (0.12, 1e-16), (0.3, 8e-16)]):
        error = ErrorPart(relative / 2.2e-16, relative, relative, 3, "w", 0)
        cases = [case(label=f"SGD-{n}", seconds=seconds, error=error) for n in range(3)]
        night(number, cases).write(tmp_path / f"{number}.jsonl")
    (found,) = of_folder(tmp_path).laws
    assert found.pace == pytest.approx(3)
    assert found.drift == pytest.approx(8)


def _times(folder: Path, *nights: dict[str, float]) -> dict[str, LawHistory]:
    """Nights in which the cases of each law took so long."""
    for number, times in enumerate(nights):
        cases = [case(name, f"SGD-{n}", seconds=seconds) for name, seconds in times.items() for n in range(5)]
        night(number, cases).write(folder / f"{number}.jsonl")
    return {law.law: law for law in of_folder(folder).laws}


def test_a_law_is_slower_if_its_last_night_stands_out_from_all_before(tmp_path: Path) -> None:
    found = _times(tmp_path, *[{"clip": 0.1, "tied": 0.1}] * 4, {"clip": 0.3, "tied": 0.1})
    assert [found[name].slower for name in ("clip", "tied")] == [True, False]


@pytest.mark.parametrize("before", [[0.1, 0.1], [0.1, 0.4, 0.1, 0.1]])
def test_of_few_or_restless_nights_nothing_is_reported(tmp_path: Path, before: list[float]) -> None:
    found = _times(tmp_path, *({"clip": seconds} for seconds in [*before, 0.3]))
    assert not found["clip"].slower


def test_a_slow_night_is_no_slow_law(tmp_path: Path) -> None:
    laws = ("clip", "tied", "names", "frozen", "grad.zero", "grad.none")
    found = _times(tmp_path, *[dict.fromkeys(laws, 0.1)] * 4, {**dict.fromkeys(laws, 0.3), "clip": 0.9})
    assert [name for name, law in found.items() if law.slower] == ["clip"]
    assert found["clip"].pace == pytest.approx(3)
    assert [round(night.tempo, 1) for night in of_folder(tmp_path).nights] == [1, 1, 1, 1, 3]


def test_a_test_of_no_subject_is_named_by_its_function(tmp_path: Path) -> None:
    cases = [CaseLine(f"test_a.py::test_b[ws{n}]", "pass", size=n) for n in (2, 3)]
    night(0, cases).write(tmp_path / "0.jsonl")
    (found,) = of_folder(tmp_path).laws
    assert (found.law, found.points[0] and found.points[0].counts) == ("test_a.py::test_b", {"pass": 2})


# --- which files are nights --------------------------------------------------------------------------


def test_a_killed_run_is_left_out_and_named_and_counts_with_partial(tmp_path: Path) -> None:
    night(0, [case()]).write(tmp_path / "0.jsonl")
    night(1, [case(outcome="fail"), case("tied")]).cut_after(1).write(tmp_path / "1.jsonl")
    found = of_folder(tmp_path)
    assert len(found.nights) == 1
    assert found.left_out == (
        "1.jsonl: its run was killed, or is still running (1 of 2 cases reported); --partial counts it too",
    )
    found = of_folder(tmp_path, partial=True)
    assert [night.whole for night in found.nights] == [True, False]
    assert found.laws[0].states == ["green", "red"]


def test_nights_may_be_compressed_and_a_compressed_copy_counts_once(tmp_path: Path) -> None:
    night(0, [case()]).write(tmp_path / "0.jsonl")
    (tmp_path / "0.jsonl.gz").write_bytes(gzip.compress(night(0, [case()]).data))
    (tmp_path / "1.jsonl.gz").write_bytes(gzip.compress(night(1, [case(outcome="fail")]).data))
    found = of_folder(tmp_path)
    assert [night.path for night in found.nights] == ["0.jsonl", "1.jsonl.gz"]
    assert found.laws[0].states == ["green", "red"]
    assert found.left_out == ("0.jsonl.gz: the same run as 0.jsonl",)


def test_a_file_that_is_not_a_run_file_is_left_out_and_named(tmp_path: Path) -> None:
    night(0, [case()]).write(tmp_path / "0.jsonl")
    (tmp_path / "empty.jsonl").write_bytes(b"")
    (tmp_path / "theirs.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "notes.txt").write_text("not looked at")
    found = of_folder(tmp_path)
    assert len(found.nights) == 1
    assert [message.split(":")[0].rpartition("/")[2] for message in found.left_out] == ["empty.jsonl", "theirs.jsonl"]


def test_a_copy_of_a_run_counts_once(tmp_path: Path) -> None:
    night(0, [case(outcome="fail")]).write(tmp_path / "a.jsonl")
    (tmp_path / "older").mkdir()
    night(0, [case(outcome="fail")]).write(tmp_path / "older" / "b.jsonl")
    found = of_folder(tmp_path)
    assert len(found.nights) == 1
    assert found.left_out == ("older/b.jsonl: the same run as a.jsonl",)


def test_a_folder_without_nights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.NoNights, match=r"no run file that can be read$"):
        of_folder(tmp_path)
    (tmp_path / "empty.jsonl").write_bytes(b"")
    with pytest.raises(errors.NoNights, match=r"empty\.jsonl: empty"):
        of_folder(tmp_path)
    with pytest.raises(errors.CannotRead, match="No such file"):
        of_folder(tmp_path / "missing")
    assert os.listdir(tmp_path) == ["empty.jsonl"]


# --- the index ---------------------------------------------------------------------------------------


def _same(first: History, second: History) -> bool:
    return (first.nights, first.laws) == (second.nights, second.laws)


def test_the_index_follows_the_files(tmp_path: Path) -> None:
    assert law(tmp_path, ".", ".").flips == 0
    night(2, [case(label="SGD-0", outcome="fail")]).write(tmp_path / "2.jsonl")
    assert of_folder(tmp_path).laws[0].states == ["green", "green", "red"]
    night(1, [case(label="SGD-0", outcome="crash")]).write(tmp_path / "001.jsonl")
    assert of_folder(tmp_path).laws[0].states == ["green", "red", "red"]
    (tmp_path / "000.jsonl").unlink()
    assert of_folder(tmp_path).laws[0].states == ["red", "red"]
    assert _same(of_folder(tmp_path), of_folder(tmp_path, rebuild=True))


def test_what_did_not_change_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = law(tmp_path, ".F", "..")

    def fail(*_: object) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr("everyrank.reports.history.index.read", fail)
    assert of_folder(tmp_path).laws == (first,)


def _of_another_version(index: Path) -> None:
    base = sqlite3.connect(index)
    base.execute("PRAGMA user_version = 99")
    base.execute("DROP TABLE outcomes")
    base.commit()
    base.close()


def _broken_in_its_middle(index: Path) -> None:
    raw = index.read_bytes()
    index.write_bytes(raw[:4096] + b"\xff" * (len(raw) - 4096))


@pytest.mark.parametrize(
    "spoil", [_of_another_version, _broken_in_its_middle, lambda index: index.write_bytes(b"no index" * 1000)]
)
def test_an_index_that_cannot_be_used_is_made_anew(tmp_path: Path, spoil: Any) -> None:
    first = law(tmp_path, ".F", "..")
    spoil(tmp_path / NAME)
    assert of_folder(tmp_path).laws == (first,)
    base = sqlite3.connect(tmp_path / NAME)
    assert base.execute("SELECT count(*) FROM nights").fetchone() == (2,)
    base.close()


def test_where_no_index_can_be_kept_it_is_made_in_memory(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()  # stands for a folder without rights, which root would have
    assert law(tmp_path, ".", "F").since == 1


def test_an_index_that_another_is_writing_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    law(tmp_path, ".", "F")
    base = sqlite3.connect(tmp_path / NAME)
    base.execute("BEGIN EXCLUSIVE")
    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda path: connect(path, timeout=0))
    assert of_folder(tmp_path).laws[0].since == 1
    base.close()


# --- the command -------------------------------------------------------------------------------------


def _command(folder: Path) -> None:
    """Five nights of four laws."""
    for number in range(5):
        error = ErrorPart(2.0, 4.4e-16, 4.4e-16 if number == 4 else 0.0, 3, "w", 0)
        cases = [
            case("clip", outcome="fail" if number > 2 else "pass"),
            case("tied", outcome="fail" if number in (1, 3) else "pass"),
            *(case("names", label=f"SGD-{n}", seconds=0.4 if number == 4 else 0.1) for n in range(5)),
            case("frozen", error=error),
            case("grad.zero"),
        ]
        night(number, cases).write(folder / f"{number}.jsonl")
    (folder / "x.jsonl").write_bytes(b"")


def test_json_holds_all_laws_and_nights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _command(tmp_path)
    assert main(["history", str(tmp_path), "--format=json"]) == 0
    data = msgspec.json.decode(capsys.readouterr().out)
    assert [night["path"] for night in data["nights"]] == [f"{number}.jsonl" for number in range(5)]
    assert len(data["left_out"]) == 1
    laws = {line["law"]: line for line in data["laws"]}
    assert laws["clip"]["since"] == 3
    assert laws["tied"]["flips"] == 4
    assert [night["state"] for night in laws["clip"]["nights"]] == ["green"] * 3 + ["red"] * 2


def test_bad_input_is_one_line_and_overwrites_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _command(tmp_path)
    before = (tmp_path / "0.jsonl").read_bytes()
    (tmp_path / "none").mkdir()
    for given in (["missing"], ["none"], [".", "-o", str(tmp_path / "0.jsonl")], ["0.jsonl"]):
        assert main(["history", str(tmp_path / given[0]), *given[1:]]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
    assert (tmp_path / "0.jsonl").read_bytes() == before


class TestTexts(expecttest.TestCase):
    """As a person reads them. EXPECTTEST_ACCEPT=1 writes them anew: then read them."""

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = tmp_path, capsys
        _command(tmp_path)

    def output(self, *arguments: str) -> str:
        assert main(["history", str(self.folder), *arguments]) == 0
        return self.capsys.readouterr().out.replace(f"{self.folder}/", "")

    def test_the_whole_report(self) -> None:
        self.assertExpectedInline(
            self.output(),
            """\
5 nights from 2026-05-28 20:26 to 2026-06-01 20:26 UTC
left out: x.jsonl: empty: its run never began

red
  mine.Optimizer rpc-optimizer/clip
    [...FF] red since 2026-05-31 20:26 (3.jsonl); last 1 fail; 1 flip; flake rate 25.00%; 0.1 s a case (1.0x)

flaky: cases flip, and no new kit, torch or commit explains it
  mine.Optimizer rpc-optimizer/tied
    [.F.F.] first bad night 2026-05-29 20:26; 4 flips; flake rate 100.00%; 0.1 s a case (1.0x)

slower than before
  mine.Optimizer rpc-optimizer/names
    [.....] 0.4 s a case (4.0x)

less exact than before
  mine.Optimizer rpc-optimizer/frozen
    [.....] 0.1 s a case (1.0x); error 4.4e-16 (was exact)

1 other law: nothing to report (--all shows them)
""",
        )

    def test_all_laws(self) -> None:
        text = self.output("--all")
        self.assertExpectedInline(
            text[text.index("the other laws") :],
            """\
the other laws
  mine.Optimizer rpc-optimizer/grad.zero
    [.....] 0.1 s a case (1.0x)
""",
        )
