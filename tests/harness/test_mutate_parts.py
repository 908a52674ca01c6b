"""The parts of ``pytest --mutate`` without a world: the plan of changes, what is listed, and the command."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
from everyrank.model.mutation import Call, MutantPart, MutationPart, Seen
from everyrank.mutants import command, plan, summary
from everyrank.mutate.lines import users_line


def _call(number: int, line: int, *ways: str) -> Call:
    return Call([0, 1], 0, number, "all_reduce", f"model.py:{line}", "", ways=list(ways))


def test_a_sample_has_each_way_at_each_line_before_any_twice() -> None:
    calls = [plan.Collected(_call(number, 8, "left-out", "zero"), (1, 2)) for number in range(10)]
    calls.append(plan.Collected(_call(10, 9, "left-out", "zero"), (1, 2)))
    for seed in range(5):
        first = plan.planned(calls, 2, seed)[:5]
        assert len({mutant.site for mutant in first}) == 5


def test_the_same_seed_draws_the_same_sample() -> None:
    calls = [plan.Collected(_call(number, number, "left-out", "zero"), (1, 2)) for number in range(10)]
    assert plan.planned(calls, 2, 3) == plan.planned(calls, 2, 3)
    assert plan.planned(calls, 2, 3) != plan.planned(calls, 2, 4)


def test_a_stale_result_needs_a_call_before() -> None:
    calls = [plan.Collected(_call(number, 8, "stale"), (1, 2)) for number in range(2)]
    mutants = [planned.mutant for planned in plan.planned(calls, 2, 0)]
    assert [(mutant.number, mutant.source) for mutant in mutants if mutant.members] == [(1, 0)]


def test_ranks_see_a_collective_once() -> None:
    seen = [Seen([_call(0, 8)]), Seen([_call(0, 8)])]
    assert len(plan.collected(seen)) == 1


def test_survivors_are_listed_by_line() -> None:
    mutants = [
        MutantPart("zero", "all_reduce", f"model.py:{line}", f"the all_reduce at model.py:{line} ...", "survived")
        for line in (88, 9)
    ]
    assert summary.survivors(MutationPart(mutants=mutants)) == [
        "nothing notices if the all_reduce at model.py:9 ...",
        "nothing notices if the all_reduce at model.py:88 ...",
    ]


def test_a_call_in_a_test_that_a_library_ships_is_named_by_that_line() -> None:
    library = "/env/site-packages"
    given: dict[str, Any] = {"found": []}
    code = compile("\ndef test(): found.append(act())", f"{library}/torch/testing/_internal/tests.py", "exec")
    exec(code, given)
    inner = compile("def act(): return line()", f"{library}/torch/distributed/collectives.py", "exec")
    exec(inner, given)
    given["line"] = lambda: users_line()
    thread = threading.Thread(target=given["test"])  # under which no frame is the user's
    thread.start()
    thread.join()
    ((found, number),) = given["found"]
    assert (found.co_filename, number) == (f"{library}/torch/testing/_internal/tests.py", 2)


def test_the_command_passes_its_options_on(monkeypatch: pytest.MonkeyPatch) -> None:
    executed: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda program, command: executed.append(command))
    command.main(["tests/test_mine.py", "-k", "sum", "--budget", "2m", "--seed=7", "--floor=0.9", "-x"])
    command.main(["tests/"])
    options = ["--mutate-budget=2m", "--mutate-seed=7", "--override-ini=everyrank_mutate=0.9"]
    assert executed[0][2:] == ["pytest", "--mutate", "tests/test_mine.py", "-k", "sum", "-x", *options]
    assert executed[1][2:] == ["pytest", "--mutate", "tests/"]
