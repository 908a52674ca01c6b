"""The run file has what became of a test at each point of a sweep of faults, and the page shows it."""

from __future__ import annotations

from pathlib import Path

import pytest
from everyrank.model.fault import PointPart, SweepPart
from everyrank.reports.runfile.read import read

from tests.chromium import Browser
from tests.inner import Project
from tests.made_up_runs import NASTY, case, header, run_of
from tests.pages import write

SOURCE = """
    import pytest, torch
    import torch.distributed as dist

    @pytest.mark.world(2)
    @pytest.mark.faults("rank 0 gets a flipped bit from each collective")
    def test_looks_at_one_of_two(process_group):
        totals = [torch.ones(3), torch.ones(3)]
        dist.barrier()
        for total in totals:
            dist.all_reduce(total)
        assert totals[0].tolist() == [2] * 3

    @pytest.mark.world(2)
    @pytest.mark.faults("rank 0 waits 0.1 s before its 1st collective")
    def test_has_one_fault(process_group):
        dist.barrier()
"""


@pytest.mark.parametrize("arguments", [[], ["-n", "1"]])
def test_each_point_stands_in_the_run_file(project: Project, arguments: list[str]) -> None:
    project.write("test_inner.py", SOURCE)
    project.run("--run-file=out.jsonl", *arguments)
    single, swept = sorted(read(project.folder / "out.jsonl").cases, key=lambda line: line.id)
    assert single.sweep is None
    assert swept.sweep is not None
    assert swept.sweep.fault == "rank 0 gets a flipped bit from each collective"
    ends = [(each.number, each.outcome, each.name, each.location) for each in swept.sweep.points]
    assert ends == [
        (1, "not-applicable", "barrier", "test_inner.py:9"),
        (2, "fail", "all_reduce", "test_inner.py:11"),
        (3, "pass", "all_reduce", "test_inner.py:11"),
    ]
    assert "assert [4.0, 2.0, 2.0] == [2, 2, 2]" in swept.sweep.points[1].message
    assert all(each.seconds > 0 for each in swept.sweep.points)
    assert swept.outcome == "fail"


def test_the_page_has_a_line_for_each_point(browser: Browser, tmp_path: Path) -> None:
    points = [
        PointPart(1, "pass", "all_reduce", "model.py:8", "", 0.05),
        PointPart(2, "timeout", "all_reduce", "model.py:9", NASTY[0], 5.0),
        PointPart(3, "not-applicable", "barrier", "model.py:9", "no tensor", 0.05),
    ]
    red = case(sweep=SweepPart("rank 1 dies at each collective", points))
    browser.open(write(run_of(header(), [red]), tmp_path), case=red.id)
    text = browser.case_opened()
    assert "Faults on purpose" in text
    assert "rank 1 dies at each collective" in text
    assert "3 runs, 1 timeout, 1 not-applicable, 1 pass." in text
    assert browser.texts(".points tbody th") == [
        "all_reduce at model.py:8",
        "all_reduce at model.py:9",
        "barrier at model.py:9",
    ]
    assert [text.strip() for text in browser.texts(".points .point")] == ["pass", "timeout", "not-applicable"]
    assert NASTY[0].split()[0] in text
    assert browser.complaints() == []


def test_a_case_without_a_sweep_has_no_such_part(browser: Browser, tmp_path: Path) -> None:
    browser.open(write(run_of(header(), [case()]), tmp_path), case=case().id)
    assert "Faults on purpose" not in browser.case_opened()
