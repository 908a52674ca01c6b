"""Tests are dealt to shards, and the run files of shards are merged: nothing is lost, nothing is there twice."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from everyrank.cli import main
from everyrank.reports.errors import NotOneRun
from everyrank.reports.runfile.model import CrossedPart, LeftOutPart, ShardPart, SinglePart
from everyrank.reports.runfile.read import Run, read
from everyrank.reports.shards import merge
from everyrank.reports.shards.deal import deal, digest

from tests.made_up_runs import MadeUp, made_up, run_of

IDS = [f"test_{number}" for number in range(12)]


# --- dealing -----------------------------------------------------------------------------------------


def test_each_test_is_dealt_once_and_no_shard_has_too_much() -> None:
    for chance in map(random.Random, range(100)):
        collected = chance.choices(IDS, k=chance.randrange(20))
        timed = chance.sample(IDS, k=chance.randrange(12))
        times = {name: chance.choice((0.0, 1e-6, 1.0, chance.uniform(0.0, 1e4))) for name in timed}
        _check_deal(collected, times, chance.randint(1, 12), chance)


def _check_deal(collected: list[str], times: dict[str, float], count: int, chance: random.Random) -> None:
    shards = deal(collected, times, count)
    assert len(shards) == count
    assert Counter(id for ids in shards for id in ids) == Counter(set(collected))
    takes = {id: max(0.001, times[id] * number) for id, number in Counter(collected).items() if id in times}
    longest = max(sum(takes.get(id, 0.0) for id in ids) for ids in shards)
    assert longest <= sum(takes.values()) / count * (1 + 1e-9) + max(takes.values(), default=0.0)
    unknown = [sum(id not in times for id in ids) for ids in shards]
    assert max(unknown) - min(unknown) <= 1
    chance.shuffle(collected)
    again = deal(collected, times, count)
    assert again == shards
    assert digest(again) == digest(shards)


def test_the_longest_goes_first_and_the_unknown_to_those_with_the_least() -> None:
    times = {"a": 1.0, "b": 2.0, "c": 30.0, "twice": 2.0, "gone": 50.0}
    assert deal(["a", "b", "c", "new", "other", "more", "twice", "twice"], times, 3) == [
        ["c", "other"],
        ["twice", "new"],
        ["b", "a", "more"],
    ]


def test_tests_that_take_no_time_are_spread_too() -> None:
    ids = [str(number) for number in range(100)]
    assert [len(shard) for shard in deal(ids, dict.fromkeys(ids, 0.0), 4)] == [25, 25, 25, 25]


def test_another_deal_has_another_digest() -> None:
    assert digest([["a"], ["b"]]) != digest([["b"], ["a"]]) != digest([["b", "a"], []])
    assert digest([["a", "b"]]) == digest([["b", "a"]])


# --- merging -----------------------------------------------------------------------------------------


def shards_of(run: MadeUp, count: int) -> list[MadeUp]:
    """Deal the cases of a made-up run, and return what each shard would have written."""
    dealt = deal([case.id for case in run.cases], {case.id: case.seconds for case in run.cases}, count)
    made = []
    for number, ids in enumerate(dealt, 1):
        part = ShardPart(number, count, digest(dealt), len(ids), len(run.cases))
        header = msgspec.structs.replace(
            run.header, shard=part, command=["pytest", f"--shard={number}/{count}", "suites/", "--run-file", "x"]
        )
        made.append(run_of(header, [case for case in run.cases if case.id in ids]))
    return made


def written(folder: Path, shards: Iterable[MadeUp]) -> list[Run]:
    return [read(shard.write(folder / f"{number}.jsonl"), partial=True) for number, shard in enumerate(shards, 1)]


def merged(folder: Path, runs: list[Run], partial: bool = False) -> Run:
    path = folder / "merged.jsonl"
    path.write_bytes(merge.contents(merge.merge(runs, partial), path))
    return read(path, partial)


def outcomes(run: Run | MadeUp) -> Counter[tuple[str, str]]:
    return Counter((case.id, case.outcome) for case in run.cases)


@pytest.mark.parametrize("seed", range(8))
def test_whatever_was_killed_no_case_is_lost_or_doubled(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    count = chance.randint(1, 9)
    whole = made_up(seed, chance.randint(1, 30))
    shards = shards_of(whole, count)
    killed = set(chance.sample(range(count), k=chance.randint(0, count)))
    for number in killed:
        shards[number] = shards[number].cut_after(chance.randint(0, len(shards[number].cases)))
    runs = written(tmp_path, shards)
    chance.shuffle(runs)
    found = merged(tmp_path, runs, partial=bool(killed))
    assert Counter(found.header.cases) == Counter(case.id for case in whole.cases)
    reported = {case.id for shard in shards for case in shard.cases}
    assert outcomes(found) == Counter(
        (case.id, case.outcome if case.id in reported else "not-run") for case in whole.cases
    )
    assert found.complete == (not killed)
    assert merge.missing(runs) == (
        "" if not killed else f"shard{'s' * (len(killed) > 1)} {', '.join(str(n + 1) for n in sorted(killed))} killed"
    )


def test_the_merged_header_and_footer(tmp_path: Path) -> None:
    first, second = shards_of(made_up(3, 40, workers=2), 2)
    assert first.footer is not None
    assert second.footer is not None
    left = [LeftOutPart("--optimizer SGD", "of other optimizers", 7)]
    change = msgspec.structs.replace
    first = replace(
        first,
        header=change(first.header, devices=["H100"], left_out=left, started=20.0),
        footer=change(
            first.footer,
            seconds=5.0,
            exit=1,
            troubles=["x.py could not be collected"],
            single=SinglePart(3, 1, 0, ["b"]),
            crossings=[CrossedPart("trainer", "mine", 2, (3, 9), (4, 9), (5, 9))],
        ),
    )
    second = replace(
        second,
        header=change(second.header, dirty=True, started=10.0),
        footer=change(
            second.footer,
            seconds=9.0,
            exit=0,
            interrupted="Ctrl-C",
            single=SinglePart(2, 1, 4, ["a"]),
            crossings=[CrossedPart("trainer", name, 4, (5, 9), (6, 9), (7, 9)) for name in ("mine", "theirs")],
        ),
    )
    found = merged(tmp_path, written(tmp_path, [first, second]))
    header, footer = found.header, found.footer
    assert footer is not None
    assert (header.shard, header.workers, header.devices, header.started) == (None, 4, ["H100"], 10.0)
    assert (header.left_out, header.dirty, header.command) == (left, True, ["pytest", "suites/"])
    assert (footer.seconds, footer.exit, footer.interrupted) == (9.0, 1, "shard 2: Ctrl-C")
    assert footer.troubles == ["shard 1: x.py could not be collected"]
    assert footer.single == SinglePart(5, 2, 4, ["a", "b"])
    assert second.footer is not None
    assert footer.crossings == second.footer.crossings, "the parts do not say which pairs are in both"
    assert {case.worker.partition("-")[0] for case in found.cases} == {"shard1", "shard2"}


REFUSED = {
    "torch is 2.12, there 2.13.0+cpu": {"torch": "2.12"},
    "Python is 3.12.1, there 3.11.9": {"python": "3.12.1"},
    "--world-seed is 7, there 1": {"seed": 7},
    "the commit is abc, there ": {"commit": "abc"},
    "is not of a shard": {"shard": None},
    "is of shard 1, and so is": {"shard": ShardPart(1, 3, "", 1, 20)},
    "it is one of 4 shards, the other of 3": {"shard": ShardPart(2, 4, "", 1, 20)},
    "they collected other tests (21, there 20)": {"shard": ShardPart(2, 3, "", 1, 21)},
}


@pytest.mark.parametrize("text", REFUSED)
def test_files_of_several_runs_are_refused(tmp_path: Path, text: str) -> None:
    shards = shards_of(made_up(1, 20, nasty=False), 3)
    changed = dict(REFUSED[text])
    if (part := changed.get("shard")) is not None and part.number == 2 and part.count == 3:
        changed["shard"] = msgspec.structs.replace(part, digest="other")
    shards[1] = replace(shards[1], header=msgspec.structs.replace(shards[1].header, **changed))
    with pytest.raises(NotOneRun) as caught:
        merge.merge(written(tmp_path, shards), partial=True)
    assert text in str(caught.value)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(run.path) for run in written(tmp_path, shards_of(made_up(5, 30, nasty=False), 3))]
    out = tmp_path / "whole.jsonl.gz"
    assert main(["merge", *runs[:2], "-o", str(out)]) == 2
    assert "everyrank merge: shard 3 of 3 is missing; --partial merges the others" in capsys.readouterr().err
    assert not out.exists()
    assert main(["merge", "--partial", *runs[:2], "-o", str(out)]) == 1
    assert "not whole: shard 3 missing" in capsys.readouterr().out
    assert main(["merge", *runs, "-o", str(out)]) == 0
    assert f"{out}: 3 shards, 30 multi-rank tests\n" == capsys.readouterr().out
    assert len(read(out).cases) == 30
    assert main(["merge", *runs, "-o", runs[0]]) == 2
    assert "is an input of the command" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b'{"line":"hea'], ids=["empty", "cut in its header"])
def test_a_shard_that_was_killed_before_its_first_test_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    runs = [str(run.path) for run in written(tmp_path, shards_of(made_up(5, 30, nasty=False), 3))]
    Path(runs[1]).write_bytes(content)
    out = str(tmp_path / "whole.jsonl")
    assert main(["merge", *runs, "-o", out]) == 2
    capsys.readouterr()
    assert main(["merge", "--partial", *runs, "-o", out]) == 1
    printed = capsys.readouterr()
    assert "not whole: shard 2 missing" in printed.out
    assert f"everyrank merge: left out: {runs[1]}" in printed.err
    assert main(["merge", "--partial", runs[1], "-o", out]) == 2
    assert "no shard began to run its tests" in capsys.readouterr().err


def test_a_page_of_shards_names_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(run.path) for run in written(tmp_path, shards_of(made_up(5, 30, nasty=False), 2))]
    assert main(["page", *runs, "-o", str(tmp_path / "page.html")]) == 2
    assert "these are shards: `everyrank merge` makes one run file of them" in capsys.readouterr().err
