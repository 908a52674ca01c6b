"""A debugger on one rank, at a real terminal: the prompt comes once, and the other ranks wait."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pexpect
import pytest
from everyrank.controller.debugger import Debugger, DebugOptions

from tests.engines import elsewhere
from tests.inner import Project
from tests.terminal import at_terminal

PROMPT = r"\(Pdb\) "

TESTS = """
import pytest, torch
import torch.distributed as dist

@pytest.mark.world(3)
def test_fails(world):
    value = 40 + world.rank
    world.barrier()
    if world.rank == 1:
        assert value == 0

@pytest.mark.world(2)
def test_stops(process_group, world):
    mine = torch.full((1,), 2.0 + world.rank)
    breakpoint()
    dist.all_reduce(mine)
    breakpoint()
    assert mine.item() == 5

@pytest.mark.world(2)
def test_stops_again(process_group, world):
    breakpoint()
    world.barrier()

@pytest.mark.world(2)
def test_never_stops(world):
    first = world.rank
    last = first + world.size
    world.barrier()

@pytest.mark.world(2)
def test_stops_late(world):
    yes = 1
    world.barrier()

@pytest.mark.world(2)
def test_module_trace(world):
    import pdb
    pdb.set_trace(header="look here")
    world.barrier()
"""

#: The line in TESTS that ``b`` is set on.
LAST = TESTS.splitlines().index("    last = first + world.size") + 1


@dataclass
class Session:
    """A terminal that runs pytest, with a person who types."""

    project: Project
    child: Any

    def ask(self, command: str) -> str:
        """Wait for the prompt, type, and return what was shown before the prompt."""
        shown = self.prompt()
        self.child.sendline(command)
        return shown

    def prompt(self) -> str:
        self.child.expect(PROMPT)
        return plain(self.child.before)

    def end(self) -> tuple[int, str]:
        """Return the rest of the output and the exit status. No prompt may come any more; nothing may be left."""
        self.child.expect(pexpect.EOF)
        rest = plain(self.child.before)
        self.child.close()
        assert "(Pdb)" not in rest
        self.project.assert_nothing_left()
        return self.child.exitstatus, rest


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).replace("\r\n", "\n")


@pytest.fixture
def sessions(project: Project) -> Iterator[Any]:
    project.write("test_inner.py", TESTS)
    children = []

    def start(test: str, *arguments: str) -> Session:
        command = project.command("-q", *arguments, *(f"test_inner.py::{name}" for name in test.split()))
        child = at_terminal(
            project, command, {**project.environment(), "TERM": "dumb"}, rows=40, columns=120, timeout=120
        )
        children.append(child)
        return Session(project, child)

    yield start
    for child in children:
        child.close(force=True)
    project.assert_nothing_left()


@pytest.mark.parametrize("options", [[], elsewhere(["--launcher=spawn"])], ids=lambda options: "".join(options))
def test_pdb_stops_the_rank_that_failed(sessions: Any, options: list[str]) -> None:
    """``--pdb``: a prompt in the frame that failed, on the rank that failed, and then the verdict as always."""
    session = sessions("test_fails", "--pdb", *options)
    shown = session.ask("p 'rank', world.rank, value")
    assert "assert 41 == 0" in shown
    assert "entering PDB" in shown
    assert "('rank', 1, 41)" in session.ask("c")
    code, rest = session.end()
    assert code == 1
    assert "1 failed" in rest
    assert "rank 1 of 3 failed first, in call" in rest
    assert "LeakWarning" not in rest


def test_pdb_keeps_to_the_rank_that_was_chosen(sessions: Any) -> None:
    """``--pdb --pdb-rank=0``: another rank's failure opens no prompt."""
    code, rest = sessions("test_fails", "--pdb", "--pdb-rank=0").end()
    assert code == 1
    assert "rank 1 of 3 failed first, in call" in rest


@pytest.mark.parametrize("options", [[], ["-s"]], ids=lambda options: "".join(options))
def test_breakpoint_stops_rank_0_and_the_others_wait_for_it(sessions: Any, options: list[str]) -> None:
    """Each breakpoint() stops rank 0 once, in each test; the collective after it finds all ranks."""
    session = sessions("test_stops test_stops_again", *options)
    assert "test_stops()" in session.ask("p 'rank', world.rank, mine.item()")
    assert "('rank', 0, 2.0)" in session.ask("c")
    session.ask("p 'sum', mine.item()")
    assert "('sum', 5.0)" in session.ask("c")
    assert "test_stops_again()" in session.ask("p 'rank', world.rank")
    assert "('rank', 0)" in session.ask("c")
    code, rest = session.end()
    assert code == 0
    assert "2 passed" in rest
    assert "Warning" not in rest


def test_at_a_breakpoint_the_rank_that_comes_first_does_not_get_the_terminal() -> None:
    debugger = Debugger(DebugOptions(on_failure=True, rank=None, terminal=contextlib.nullcontext))
    assert [debugger.ask(rank, "breakpoint", lambda: None) for rank in (1, 0)] == [False, True]
    debugger.leave()
    assert debugger.ask(1, "failure", lambda: None)
    debugger.leave()


def test_breakpoint_and_pdb_set_trace_stop_the_rank_that_was_chosen(sessions: Any) -> None:
    session = sessions("test_stops_again test_module_trace", "--pdb-rank=1")
    session.ask("p 'rank', world.rank")
    assert "('rank', 1)" in session.ask("c")
    assert "look here" in session.ask("p 'rank', world.rank")
    assert "('rank', 1)" in session.ask("c")
    assert session.end()[0] == 0


def test_quit_ends_the_run(sessions: Any) -> None:
    """``q``: no verdict, no further test, and the ranks that wait in a collective are gone."""
    session = sessions("test_stops test_stops_again")
    session.ask("q")
    code, rest = session.end()
    assert code == 2
    assert "rank 0: Quitting debugger" in rest
    assert "passed" not in rest
    assert "failed" not in rest
    assert "Warning" not in rest


def test_quit_after_a_failure_ends_the_run(sessions: Any) -> None:
    session = sessions("test_fails test_stops", "--pdb")
    session.ask("q")
    code, rest = session.end()
    assert code == 2
    assert "rank 1: Quitting debugger" in rest


def test_the_end_of_the_input_fails_the_test(sessions: Any) -> None:
    """Ctrl-D at the prompt raises BdbQuit, as in any pytest; no rank waits for the one that it ended."""
    session = sessions("test_stops")
    session.prompt()
    session.child.sendeof()
    code, rest = session.end()
    assert code == 1
    assert "rank 0 of 2 failed first, in call" in rest
    assert "[rank 0] bdb.BdbQuit" in rest


@pytest.mark.parametrize("options", [[], elsewhere(["--launcher=spawn"])], ids=lambda options: "".join(options))
def test_trace_stops_the_rank_that_was_chosen(sessions: Any, options: list[str]) -> None:
    """It stops no other rank: the prompt is at the start of the test on that rank, and ``next`` steps through it."""
    session = sessions("test_never_stops test_stops_late", "--trace", "--pdb-rank=1", *options)
    assert "-> first = world.rank" in session.ask("n")
    session.ask("p 'rank', world.rank, first")
    assert "('rank', 1, 1)" in session.ask("c")
    session.ask("p 'next', world.rank")
    assert "('next', 1)" in session.ask("c")
    code, rest = session.end()
    assert code == 0
    assert "2 passed" in rest


def test_breakpoints_that_a_person_sets_are_reached(sessions: Any) -> None:
    """``--trace`` stops where each test starts; then ``b`` and ``c`` stay on this rank until the test has ended."""
    session = sessions("test_never_stops test_stops_again", "--trace", "--capture=sys")
    session.ask(f"b {LAST}")
    assert "Breakpoint 1" in session.ask("c")
    assert "-> last = first + world.size" in session.ask("p 'first', first")
    assert "('first', 0)" in session.ask("c")
    assert "-> breakpoint()" in session.ask("cl 1")
    session.ask("c")
    session.ask("c")
    code, rest = session.end()
    assert code == 0
    assert "2 passed" in rest


def test_an_interrupt_at_the_prompt_is_for_the_rank(sessions: Any) -> None:
    """Ctrl-C while a person debugs does not end the run."""
    session = sessions("test_stops_again")
    session.prompt()
    session.child.sendintr()
    session.ask("p 'still', world.rank")
    assert "('still', 0)" in session.ask("c")
    assert session.end()[0] == 0


def test_a_person_may_take_their_time_while_others_wait_in_a_collective(sessions: Any) -> None:
    session = sessions("test_stops", "--timeout=60")
    session.ask("import time; time.sleep(4)")
    session.ask("continue")
    session.ask("time.sleep(4)")
    session.ask("continue")
    code, rest = session.end()
    assert code == 0, rest
