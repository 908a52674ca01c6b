"""The benchmarks name what got slower than in the table that is kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import kept
from benchmarks.measure import Cost, Row

ROW = Row("work", "at most 2 times", "1.00 times", True, Cost(1.0, 1.0))


@pytest.mark.parametrize(
    ("now", "names"),
    [
        (Cost(1.0, 1.0), []),
        (Cost(1.4, 1.2), []),
        (Cost(0.1, 0.1), []),
        (Cost(1.6, 1.0), ["time"]),
        (Cost(1.0, 1.3), ["processor time"]),
        (Cost(1.6, 1.3), ["time", "processor time"]),
    ],
)
def test_a_ratio_that_has_grown_by_more_than_the_tolerance_is_slower(now: Cost, names: list[str]) -> None:
    sentences = list(kept.slower([replace(ROW, ratio=now)], {"work": Cost(1.0, 1.0)}))
    assert [sentence.removeprefix("work: ").partition(" is ")[0] for sentence in sentences] == names


def test_a_new_row_and_a_row_without_a_ratio_are_not_compared() -> None:
    assert not list(kept.slower([ROW, replace(ROW, work="other", ratio=None)], {"other": Cost(0.1, 0.1)}))


def test_the_ratios_are_kept_as_they_were_written(tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    assert kept.read(file) == {}
    kept.write([ROW, replace(ROW, work="without a ratio", ratio=None)], file)
    assert kept.read(file) == {"work": Cost(1.0, 1.0)}


@pytest.mark.parametrize(("before", "code"), [(1.0, 0), (0.1, 1)], ids=["as-before", "slower"])
def test_the_command_fails_if_something_got_slower(
    before: float, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Benchmark:
        @staticmethod
        def rows() -> list[Row]:
            return [ROW]

    monkeypatch.setattr("sys.argv", ["benchmarks", "warm"])
    monkeypatch.setattr(command.importlib, "import_module", lambda name: Benchmark)
    monkeypatch.setattr(kept, "read", lambda: {"work": Cost(before, 1.0)})
    assert command.main() == code
    assert ("SLOWER: work: time is 1 times the other side's; it was 0.1 times" in capsys.readouterr().out) == bool(
        code
    )
