"""The benchmarks name what got slower than in the table that is kept."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from everyrank.model.outcome import Ending
from everyrank.reports.runfile.model import CaseLine

from benchmarks import __main__ as command
from benchmarks import kept, measure, worlds
from benchmarks.measure import Cost, Row

ROW = Row("work", "at most 2 times", "1.00 times", True, Cost(1.0, 1.0))


@pytest.mark.parametrize(
    ("now", "names"),
    [
        (Cost(1.0, 1.0), []),
        (Cost(1.4, 1.3), []),
        (Cost(0.1, 0.1), []),
        (Cost(1.6, 1.0), ["time"]),
        (Cost(1.0, 1.5), ["processor time"]),
        (Cost(1.6, 1.5), ["time", "processor time"]),
    ],
)
def test_a_ratio_that_has_grown_by_more_than_the_tolerance_is_slower(now: Cost, names: list[str]) -> None:
    sentences = list(kept.slower([replace(ROW, ratio=now)], {"work": Cost(1.0, 1.0)}, whole=True))
    assert [sentence.removeprefix("work: ").partition(" is ")[0] for sentence in sentences] == names


def test_a_new_row_and_a_row_without_a_ratio_are_not_compared() -> None:
    rows = [ROW, replace(ROW, work="other", ratio=None)]
    assert not list(kept.slower(rows, {"other": Cost(0.1, 0.1)}, whole=False))


def test_a_kept_row_that_a_whole_run_does_not_have_is_named() -> None:
    (sentence,) = kept.slower([ROW], {"work": Cost(1.0, 1.0), "other": Cost(1.0, 1.0)}, whole=True)
    assert sentence == "other: the row is kept, and this run does not have it"


def test_the_ratios_are_kept_as_they_were_written(tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    kept.write([ROW, replace(ROW, work="without a ratio", ratio=None)], file)
    assert kept.read(file) == {"work": Cost(1.0, 1.0)}


def test_without_processor_time_only_the_clock_is_compared(tmp_path: Path) -> None:
    file = tmp_path / "kept.json"
    kept.write([replace(ROW, ratio=Cost(1.0, math.nan))], file)
    found = kept.read(file)
    assert math.isnan(found["work"].processor)
    (sentence,) = kept.slower([replace(ROW, ratio=Cost(9.0, math.nan))], found, whole=True)
    assert sentence.startswith("work: time is 9 times")


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


#: Starts a process that starts another one in a session of its own, and is killed.
LEAVES_ONE = """
import os, subprocess, sys
from benchmarks.cases import orphans

orphans.adopt()
code = "import subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid, flush=True); input()"
child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
pid = child.stdout.readline().strip()
child.kill()
child.wait()
print(int(pid) in orphans.children(os.getpid()))
orphans.end()
try:
    open(f"/proc/{pid}/stat")
except FileNotFoundError:
    print("gone")
"""


def test_an_interrupted_benchmark_ends_the_processes_whose_parents_have_gone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEAVES_ONE], cwd=measure.HERE.parent, capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == ["True", "gone"], done.stderr


def test_each_kept_row_stands_in_the_table() -> None:
    table = (measure.HERE / "README.md").read_text()
    assert [work for work in kept.read() if f"| {work} " not in table] == []


# --- what the README states ----------------------------------------------------------------------------

_REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ("fresh processes, against torch's MultiProcessTestCase", "with new processes, `all_reduce` | {} | {} |"),
        ("against torch's MultiProcContinuousTest", "a class of 20 tests in one world | {} | {} |"),
        ("against torch's RpcAgentTestFixture", "one RPC call with new processes | {} | {} |"),
        ("20 of torch's RPC tests, by --adopt", "RPC tests take {} here and {} under torch's harness"),
        ("4 stuck ranks, all gone after their deadline", "Four stuck ranks are gone {} after their deadline"),
    ],
)
def test_a_number_of_the_readme_is_the_one_that_was_measured_last(row: str, sentence: str) -> None:
    readme = " ".join((_REPOSITORY / "README.md").read_text().split())
    (measured,) = [line.split("|")[3] for line in _table() if row in line]
    numbers = re.findall(r"[\d.]+ m?s", measured)
    assert sentence.format(*numbers) in readme, f"{row}: {measured.strip()}"


def test_a_target_that_was_not_met_is_a_limit_of_the_readme() -> None:
    missed = [line for line in _table() if line.split("|")[4].strip() == "no"]
    limits = (_REPOSITORY / "README.md").read_text().partition("## Limits")[2]
    assert bool(missed) == ("targets of the benchmarks" in limits), missed


def _table() -> list[str]:
    text = (_REPOSITORY / "benchmarks/README.md").read_text()
    return [line for line in text.partition("the last table: begin")[2].splitlines() if line.startswith("| ")]


# --- many worlds ----------------------------------------------------------------------------------------


def test_worlds_that_end_in_each_way_have_true_verdicts(capsys: pytest.CaptureFixture[str]) -> None:
    assert worlds.main(["--worlds", "18"]) == 0
    assert capsys.readouterr().out.startswith("\n18 of 18 worlds, 0 wrong verdicts: ")


@pytest.mark.parametrize(
    ("number", "outcome", "message"),
    [
        (0, "pass", ""),  # an assertion fails there
        (5, "crash", "rank 0 of 2 was killed by SIGKILL in call"),  # rank 1 was
        (14, "fail", "rank 0 ended its test without reaching this all_reduce"),  # a timeout is true
        (16, "fail", "planted 16"),  # it passes
    ],
)
def test_a_verdict_that_is_not_true_is_named(number: int, outcome: Ending, message: str) -> None:
    line = CaseLine(id=f"worlds.py::test_world[{number}]", outcome=outcome, message=message)
    assert worlds.planted(line).wrong(line).startswith(f"worlds.py::test_world[{number}] ")
