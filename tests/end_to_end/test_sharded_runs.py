"""``--shard`` splits a run: each test runs on one shard, and the merged run file is that of a run on one machine."""

from __future__ import annotations

import os
import re
import signal
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from everyrank.cli import main
from everyrank.reports.runfile.read import Run, read
from everyrank.reports.shards import choose

from tests.engines import one_run
from tests.inner import Inner, Project

TESTS = """
    import pytest

    @pytest.mark.world(2)
    @pytest.mark.parametrize("number", range(7))
    def test_many(world, number):
        assert number != 5, "five"

    @pytest.mark.world(3)
    def test_three(world):
        pytest.skip("not today")

    @pytest.mark.parametrize("number", range(4))
    def test_alone(number):
        pass
"""


def outcomes(run: Run) -> Counter[tuple[str, str]]:
    return Counter((case.id, case.outcome) for case in run.cases)


def merged(project: Project, *arguments: str) -> tuple[int, Run]:
    path = project.folder / "merged.jsonl"
    files = sorted(map(str, project.folder.glob("shard-*.jsonl")))
    return main(["merge", *files, "-o", str(path), *arguments]), read(path, partial=True)


def shard(project: Project, number: int, count: int, *arguments: str) -> Inner:
    return project.run(f"--shard={number}/{count}", "--run-file", f"shard-{number}.jsonl", *arguments)


#: The run that is not split, with its run file.
whole = one_run({"test_it.py": TESTS}, "--run-file", "whole.jsonl")


def test_the_shards_are_the_whole_run(project: Project, whole: Inner) -> None:
    project.write("test_it.py", TESTS)
    inners = [shard(project, number, 3, *(["-n", "1"] if number == 2 else [])) for number in (1, 2, 3)]
    ran = Counter(id for inner in inners for id in inner.tests)
    assert ran == Counter(whole.tests.keys())
    code, found = merged(project)
    assert code == 0
    expected = read(whole.folder / "whole.jsonl")
    assert outcomes(found) == outcomes(expected)
    assert found.counts == expected.counts
    assert found.footer is not None
    assert expected.footer is not None
    assert (found.footer.exit, found.footer.single) == (expected.footer.exit, expected.footer.single)
    assert [inner.code for inner in inners] == [int("five" in inner.out) for inner in inners]
    assert found.conclusion.state == "not-as-declared"
    page = project.folder / "page.html"
    assert main(["page", str(found.path), "-o", str(page)]) == 0
    assert "test_three" in page.read_text()
    assert all(f"shard {number} of 3: 4 of 12 tests" in inner.out for number, inner in enumerate(inners, 1))


def test_times_of_an_earlier_run_balance_the_shards(project: Project, whole: Inner) -> None:
    project.write("test_it.py", TESTS)
    lines = (whole.folder / "whole.jsonl").read_text().splitlines()
    slow = [i for i, line in enumerate(lines) if "test_three" in line and '"line":"case"' in line]
    assert len(slow) == 1
    line = msgspec.json.decode(lines[slow[0]])
    lines[slow[0]] = msgspec.json.encode({**line, "seconds": 1000.0}).decode()
    (project.folder / "whole.jsonl").write_text("\n".join(lines) + "\n")
    first = shard(project, 1, 2, "--shard-times=whole.jsonl")
    second = shard(project, 2, 2, "--shard-times=whole.jsonl")
    assert [name for name in first.outcomes() if "alone" not in name] == ["test_three"]  # the others have no times
    assert (len(first.tests), len(second.tests)) == (3, 9)
    assert "shard 1 of 2: 3 of 12 tests, which took 1000 s of 100" in first.out
    assert merged(project)[0] == 0
    shard(project, 2, 2)  # without the times: another deal
    assert merged(project)[0] == 2


def test_more_shards_than_tests(project: Project) -> None:
    project.write("test_it.py", TESTS)
    inners = [shard(project, number, 3, "-k", "three or alone and 2") for number in (1, 2)]
    inners.append(shard(project, 3, 3, "-k", "three or alone and 2", "-n", "1"))
    assert [inner.code for inner in inners] == [0, 0, 0]
    assert [len(inner.tests) for inner in inners] == [1, 1, 0]
    assert merged(project)[0] == 0
    assert shard(project, 1, 3, "-k", "nothing").code == 5


STUCK = """
    import os, pytest, time
    from pathlib import Path

    @pytest.mark.world(2)
    @pytest.mark.parametrize("number", range(6))
    def test_many(world, number):
        if os.environ.get("INNER_STUCK") and number > 2:
            Path("stuck").touch()
            time.sleep(100)
"""


def test_a_shard_that_was_killed_loses_no_test(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write("test_it.py", STUCK)
    assert shard(project, 1, 2).code == 0
    monkeypatch.setenv("INNER_STUCK", "1")
    process = project.start("--shard=2/2", "--run-file", "shard-2.jsonl")
    try:
        while not (project.folder / "stuck").exists():
            assert process.poll() is None
            time.sleep(0.02)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    project.assert_nothing_left()
    assert main(["merge", *map(str, project.folder.glob("shard-*.jsonl")), "-o", str(project.folder / "no")]) == 2
    code, found = merged(project, "--partial")
    assert code == 1
    assert not found.complete
    ids = [case.id for case in found.cases]
    assert sorted(ids) == [f"test_it.py::test_many[{number}]" for number in range(6)]
    assert {case.outcome for case in found.cases} == {"pass", "not-run"}
    assert found.counts["not-run"] >= 1
    monkeypatch.delenv("INNER_STUCK")
    shard(project, 2, 2)
    code, found = merged(project)
    assert (code, found.counts) == (0, {"pass": 6})


@pytest.mark.parametrize(
    ("shard", "times", "error"),
    [
        ("0/3", None, "--shard: must be K/N with K from 1 to N, such as 3/8, not '0/3'"),
        ("x", None, "--shard: must be K/N with K from 1 to N, such as 3/8, not 'x'"),
        (None, "a.jsonl", "--shard-times: it balances the shards of --shard=K/N, which is missing"),
        ("1/2", "a.jsonl", "--shard-times: "),
    ],
)
def test_options_that_make_no_sense_are_refused(
    shard: str | None, times: str | None, error: str, tmp_path: Path
) -> None:
    options = {"shard": shard, "shard_times": times}
    config: Any = SimpleNamespace(getoption=options.get, invocation_params=SimpleNamespace(dir=tmp_path))
    with pytest.raises(pytest.UsageError, match=f"^{re.escape(error)}"):
        choose.choose(config, [], choose.asked(config))  # type: ignore[arg-type]


def test_bad_use_runs_nothing(project: Project) -> None:
    project.write("test_it.py", TESTS)
    inner = project.run("--shard=4/3")
    assert inner.code == 4
    assert "ERROR: --shard: must be K/N with K from 1 to N, such as 3/8, not '4/3'" in inner.out
    assert inner.tests == {}


@pytest.mark.group("clusters")
def test_spawned_ranks_run_the_tests_of_their_shard(project: Project) -> None:
    project.write("test_it.py", TESTS)
    inners = [shard(project, number, 2, "--launcher=spawn", "-k", "many and (1 or 2)") for number in (1, 2)]
    assert [list(inner.outcomes().values()) for inner in inners] == [["passed"], ["passed"]]
