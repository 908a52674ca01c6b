"""``everyrank trace``: what ran when, on which rank, and for whom a rank waited."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from everyrank.cli import main

from tests.inner import Project

TESTS = """
    import pytest
    import torch
    import torch.distributed as dist

    @pytest.mark.world(3)
    def test_skips_a_collective(process_group):
        if dist.get_rank() != 1:
            dist.all_reduce(torch.ones(1))

    @pytest.mark.world(2)
    def test_passes(process_group):
        dist.barrier()
"""


@pytest.fixture(scope="module")
def events(module_project: Project) -> list[dict[str, Any]]:
    module_project.write("test_traced.py", TESTS)
    module_project.run("--run-file=run.jsonl", "-p", "no:randomly")
    target: Path = module_project.folder / "trace.json"
    assert main(["trace", str(module_project.folder / "run.jsonl"), "-o", str(target)]) == 0
    found: list[dict[str, Any]] = json.loads(target.read_text())["traceEvents"]
    return found


def _on(events: list[dict[str, Any]], track: str, kind: str) -> list[dict[str, Any]]:
    """Return the events of a kind on a track, in the order of time."""
    named = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    return sorted((e for e in events if e["ph"] == kind and named[e["tid"]] == track), key=lambda e: e["ts"])


def test_each_rank_has_a_track(events: list[dict[str, Any]]) -> None:
    names = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
    assert names == ["tests", "rank 0", "rank 1", "rank 2"]
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["pytest"]
    assert [e["cat"] for e in _on(events, "rank 1", "X")] == ["passed", "passed"]
    assert len(_on(events, "rank 2", "X")) == 1


def test_a_test_has_its_phases_inside(events: list[dict[str, Any]]) -> None:
    outer, *phases = [e for e in _on(events, "tests", "X") if e["ts"] < _on(events, "tests", "X")[-1]["ts"]][:4]
    assert outer["name"].endswith("test_skips_a_collective")
    assert [e["name"] for e in phases] == ["setup", "call", "teardown"]
    first, *others = phases
    assert first["ts"] == outer["ts"]
    assert [e["ts"] for e in others] == pytest.approx([e["ts"] + e["dur"] for e in phases[:-1]], abs=1)


def test_an_arrow_leads_from_each_rank_that_waited_to_the_one_to_blame(events: list[dict[str, Any]]) -> None:
    (blamed,) = _on(events, "rank 1", "i")
    assert blamed["name"] == "to blame: ended its test"
    for rank in ("rank 0", "rank 2"):
        (waiting,) = _on(events, rank, "i")
        assert "waiting in all_reduce" in waiting["name"]
    starts, ends = ([e for e in events if e["ph"] == kind] for kind in "sf")
    assert sorted(e["tid"] for e in starts) == [1, 3]
    assert [e["tid"] for e in ends] == [2, 2]
    assert {e["id"] for e in starts} == {e["id"] for e in ends}
    assert len({e["id"] for e in starts}) == 2


def test_a_green_test_has_no_marks(events: list[dict[str, Any]]) -> None:
    passes = next(e for e in events if e["ph"] == "X" and e["name"].endswith("test_passes"))
    assert not [e for e in events if e["ph"] == "i" and e["ts"] > passes["ts"]]
    assert passes["cat"] == "pass"
