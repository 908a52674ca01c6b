"""A test that failed leaves much behind that it would have cleaned up: reported briefly, after its failure."""

from __future__ import annotations

import re

import pytest

from tests.engines import one_run
from tests.inner import Inner, Project

SOURCE = """
    import os, threading
    import pytest, torch
    import torch.distributed as dist

    world_of_2 = pytest.mark.world(2)


    def open_group(world):
        opened = {"rank": world.rank, "world_size": world.size}
        dist.init_process_group("gloo", init_method=world.init_method, **opened)  # group
        dist.barrier()

    @world_of_2
    def test_fails_on_one_rank(world):
        open_group(world)
        assert world.rank == 0, "the failure"
        dist.destroy_process_group()

    @world_of_2
    def test_fails_on_all_ranks(world):
        open_group(world)
        threading.Thread(target=threading.Event().wait, name="for ever", daemon=True).start()
        os.pipe()
        raise ValueError("the failure")

    @world_of_2
    def test_leaves_much_else(world):
        for name in ("a", "b", "c"):
            os.environ[name] = "1"  # variable
        threading.Thread(target=threading.Event().wait, name="for ever", daemon=True).start()  # thread
        assert world.rank == 0, "the failure"

    @world_of_2
    @pytest.mark.xfail(reason="known")
    def test_is_known_to_fail(world):
        open_group(world)
        raise ValueError("the failure")
"""


def line(comment: str) -> int:
    return next(number for number, text in enumerate(SOURCE.splitlines(), 1) if text.endswith(f"# {comment}"))


GROUP = f"a process group: ProcessGroup '0' of 2 ranks, made at test_inner.py:{line('group')}"

#: test -> the whole report of its leaks.
BRIEF = {
    "test_fails_on_one_rank": f"rank 1 left when it failed: {GROUP}",
    "test_fails_on_all_ranks": "ranks 0,1 left when they failed: a process group, a thread, 2 file descriptors",
    "test_leaves_much_else": f"ranks 0,1 left a thread: for ever, started at test_inner.py:{line('thread')}\n"
    "ranks 0,1 left a variable of the environment changed: a='1', was not set, "
    f"set at test_inner.py:{line('variable')}, and 2 more leaks (-vv shows all)",
}


ran = one_run(SOURCE, "-rx")


@pytest.mark.parametrize("test", BRIEF)
def test_leaks_of_a_failed_test_are_brief(ran: Inner, test: str) -> None:
    assert ran[test].outcome == "failed"
    assert ran[test].sections["left behind"] == BRIEF[test]


@pytest.mark.parametrize("test", BRIEF)
def test_leaks_of_a_failed_test_come_after_its_failure_and_nowhere_else(ran: Inner, test: str) -> None:
    last = BRIEF[test].splitlines()[-1]
    assert ran.out.count(last) == 1
    shown = re.search(rf"_+ {test} _+\n(.*?){re.escape(last)}", ran.out, re.DOTALL)
    assert shown is not None
    assert "the failure" in shown[1]


def test_leaks_of_a_known_failure_are_brief_and_only_in_its_report(ran: Inner) -> None:
    assert ran["test_is_known_to_fail"].sections["left behind"] == f"ranks 0,1 left when they failed: {GROUP}"
    assert [warning for warning in ran.warnings if warning["nodeid"].endswith("test_is_known_to_fail")] == []


def test_all_leaks_of_a_failed_test_are_kept_for_reports(ran: Inner) -> None:
    assert ran["test_fails_on_all_ranks"].properties["leaks"].count("ranks 0,1 left") == 3


def test_all_leaks_of_a_failed_test_are_shown_if_asked_for(project: Project) -> None:
    project.write("test_inner.py", SOURCE)
    text = project.run("-vv", "-k", "test_leaves_much_else")["test_leaves_much_else"].sections["left behind"]
    assert len(text.splitlines()) == 4
