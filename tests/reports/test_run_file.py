"""What a run file says of each kind of end, with pytest-xdist and without."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from everyrank.cli import main

from tests.forked import ForkServers
from tests.inner import Inner, Project
from tests.run_files import RunFile, read

_SOURCE = """
    import os, time
    import pytest, torch, torch.distributed as dist

    @pytest.mark.world(2)
    def test_good(process_group, world):
        print("hello from", world.rank)

    @pytest.mark.world(3)
    def test_bad(world, record_property):
        record_property("subject", "of my own")
        record_property("outcome", "splendid")
        assert world.rank != 1, "no <script>"

    @pytest.mark.world(2)
    def test_lost(process_group, world):
        if world.rank == 1:
            os._exit(3)
        dist.barrier()

    @pytest.mark.world(2, timeout=1)
    def test_late(world):
        if world.rank == 1:
            time.sleep(100)

    @pytest.mark.world(2)
    def test_setup(world, nothing_of_that_name): pass

    @pytest.mark.world(0)
    def test_misused(): pass

    @pytest.mark.world(2)
    @pytest.mark.skipif(True, reason="not on a Monday")
    def test_skipped_beforehand(): pass

    @pytest.mark.world(2)
    def test_skipped_on_ranks(): pytest.skip("not today")

    @pytest.mark.world(2)
    @pytest.mark.xfail(reason="as it stands")
    def test_expected(): assert 0

    @pytest.mark.world(2)
    @pytest.mark.xfail(reason="as it stood", strict=True)
    def test_expected_no_more(): pass

    @pytest.mark.world(2)
    def test_leak(world):
        kept.append(open(__file__))

    kept = []

    @pytest.mark.world(2)
    def test_loud():
        print("a" * 10_000 + "b" * 10_000)
        print("\\udcff")
        assert 0, "c" * 50_000

    def test_of_one_process(): pass
"""


@pytest.fixture(scope="module", params=["alone", "workers"])
def run(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, fork_servers: ForkServers
) -> tuple[Inner, RunFile]:
    project = Project(tmp_path_factory.mktemp(request.param), fork_servers)
    project.write("test_inner.py", _SOURCE)
    more = ["-n", "2"] if request.param == "workers" else []
    inner = project.run("--run-file", "out/run.jsonl", "--world-seed=7", *more, "-W", "ignore")
    return inner, read(project.folder / "out/run.jsonl")


def test_every_multi_rank_test_has_an_outcome(run: tuple[Inner, RunFile]) -> None:
    assert run[1].outcomes == {
        "test_good": "pass",
        "test_bad": "fail",
        "test_lost": "crash",
        "test_late": "timeout",
        "test_setup": "error",
        "test_misused": "error",
        "test_skipped_beforehand": "skipped",
        "test_skipped_on_ranks": "skipped",
        "test_expected": "known",
        "test_expected_no_more": "stale",
        "test_leak": "pass",
        "test_loud": "fail",
    }


def test_the_header_states_what_ran_and_lists_the_tests_in_order(run: tuple[Inner, RunFile]) -> None:
    inner, run_file = run
    header = run_file.header
    assert (header["schema"], header["seed"]) == (2, 7)
    assert header["torch"]
    assert header["backends"] == ["gloo"]
    assert header.get("workers", 1) == (2 if "-n" in header["command"] else 1)
    assert header["cases"][0] == "test_inner.py::test_good"
    assert sorted(header["cases"]) == sorted(case["id"] for case in run_file.cases)
    assert "test_inner.py::test_of_one_process" in inner.tests


def test_the_footer_counts_and_has_the_exit_status(run: tuple[Inner, RunFile]) -> None:
    inner, run_file = run
    assert run_file.footer is not None
    assert run_file.footer["counts"] == Counter(case["outcome"] for case in run_file.cases)
    assert run_file.footer["exit"] == inner.code == 1
    assert run_file.footer["seconds"] > 0


def test_a_failure_is_reported_rank_by_rank(run: tuple[Inner, RunFile]) -> None:
    case = run[1]["test_bad"]
    assert (case["rule"], case["size"]) == ("failed", 3)
    assert case["message"] == "[rank 1] AssertionError: no <script>"
    assert "rank 1 of 3 failed first, in call" in case["text"]
    assert [rank["outcome"] for rank in case["ranks"]] == ["passed", "failed", "passed"]
    failed = case["ranks"][1]
    assert (failed["rank"], failed["phase"]) == (1, "call")
    assert failed["text"] == "AssertionError: no <script>"
    assert failed["where"].startswith("test_inner.py:")
    assert case["repeat"] == "pytest test_inner.py::test_bad --world-seed=7 -W ignore"


def test_properties_of_a_users_test_make_no_case_of_it(run: tuple[Inner, RunFile]) -> None:
    case = run[1]["test_bad"]
    assert case["outcome"] == "fail"
    assert "subject" not in case


def test_phases_have_times(run: tuple[Inner, RunFile]) -> None:
    case = run[1]["test_good"]
    assert [(phase["when"], phase["outcome"]) for phase in case["phases"]] == [
        ("setup", "passed"), ("call", "passed"), ("teardown", "passed"),
    ]  # fmt: skip
    assert case["seconds"] >= max(phase["seconds"] for phase in case["phases"])
    assert case["started"] > run[1].header["started"]


def test_a_world_has_a_name_and_its_worker_too(run: tuple[Inner, RunFile]) -> None:
    with_workers = "-n" in run[1].header["command"]
    for name in ("test_good", "test_bad"):
        case = run[1][name]
        assert case.get("worker", "") in (("gw0", "gw1") if with_workers else ("",))
        assert case["world"].startswith("gw") == with_workers


def test_a_rank_that_died_is_reported_with_its_exit_status(run: tuple[Inner, RunFile]) -> None:
    case = run[1]["test_lost"]
    assert case["rule"] == "lost"
    lost = case["ranks"][1]
    assert (lost["outcome"], lost["phase"]) == ("lost", "call")
    assert lost["text"] == "left without a record (exit code 3)"


def test_a_missed_deadline_has_its_roll_call(run: tuple[Inner, RunFile]) -> None:
    case = run[1]["test_late"]
    (stance,) = case["rollcall"]
    assert stance["ranks"] == [1]
    assert stance["doing"].startswith("in test_late at test_inner.py:")
    # As the roll call at the terminal has it: from the root folder.
    assert any(frame.startswith("test_late at test_inner.py:") for frame in stance["frames"])
    assert [rank["outcome"] for rank in case["ranks"]] == ["passed", "cut"]


def test_the_users_own_frames_of_a_roll_call_have_their_lines_of_code(run: tuple[Inner, RunFile]) -> None:
    (stance,) = run[1]["test_late"]["rollcall"]
    lines = dict(zip(stance["frames"], stance["code"], strict=True))
    assert {code for frame, code in lines.items() if "test_inner.py:" in frame} == {"time.sleep(100)"}
    assert {code for frame, code in lines.items() if "test_inner.py:" not in frame} <= {""}


def test_a_test_without_a_world_has_a_reason(run: tuple[Inner, RunFile]) -> None:
    refused, skipped = run[1]["test_misused"], run[1]["test_skipped_beforehand"]
    assert "a world size must be a whole number of ranks" in refused["message"]
    assert skipped["message"] == "not on a Monday"
    assert run[1]["test_skipped_on_ranks"]["message"] == "not today"
    for case in (refused, skipped):
        assert {"size", "world", "ranks"}.isdisjoint(case)
        assert case["repeat"].startswith("pytest test_inner.py::test_")


def test_an_expected_failure_gives_its_reason(run: tuple[Inner, RunFile]) -> None:
    assert run[1]["test_expected"]["message"] == "as it stands"
    assert "assert 0" in run[1]["test_expected"]["text"]


def test_leaks_are_listed_with_their_ranks(run: tuple[Inner, RunFile]) -> None:
    (leak,) = run[1]["test_leak"]["leaks"]
    assert (leak["kind"], leak["ranks"]) == ("fd", [0, 1])
    assert "/test_inner.py" in leak["what"]


def test_captured_output_is_kept_by_rank(run: tuple[Inner, RunFile]) -> None:
    assert run[1]["test_good"]["output"] == [
        {"name": "Captured stdout call, rank 0", "text": "hello from 0\n", "ranks": [0]},
        {"name": "Captured stdout call, rank 1", "text": "hello from 1\n", "ranks": [1]},
    ]


def test_long_texts_keep_their_start_and_end(run: tuple[Inner, RunFile]) -> None:
    case = run[1]["test_loud"]
    (output,) = case["output"]
    assert output["text"].startswith("aaaa")
    assert len(output["text"]) < 5_000
    assert "characters are left out here" in output["text"]
    assert "characters are left out here" in case["text"]
    assert len(case["text"]) < 20_000
    assert "pytest test_inner.py::test_loud" in case["text"]
    assert len(case["message"]) < 400


def test_the_end_of_the_run_names_the_file(run: tuple[Inner, RunFile]) -> None:
    assert f"run file: {os.path.join('out', 'run.jsonl')}" in run[0].out


def test_everyrank_schema_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    printed = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator.check_schema(printed)
    assert set(printed["$defs"]) > {"Header", "CaseLine", "Footer"}


@pytest.mark.parametrize(
    "change",
    [{"outcome": "splendid"}, {"line": "verse"}, {"surprise": 1}, {"ranks": [{"rank": 0}]}, {"seconds": None}],
)
def test_the_schema_refuses_other_lines(tmp_path: Path, change: dict[str, Any]) -> None:
    header = {"line": "header", "schema": 1, "kit": "1", "torch": "2", "python": "3", "platform": "p", "started": 1.0}
    case = {"line": "case", "id": "test_x.py::test", "outcome": "pass"}
    path = tmp_path / "run.jsonl"
    path.write_text(f"{json.dumps(header)}\n{json.dumps(case)}\n")
    read(path)
    path.write_text(f"{json.dumps(header)}\n{json.dumps({**case, **change})}\n")
    with pytest.raises(jsonschema.ValidationError):
        read(path)
