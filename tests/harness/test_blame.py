"""The ranks to blame when a world ends badly: the table of everyrank.rollcall.blame, row by row, on made-up facts."""

from __future__ import annotations

from pathlib import Path

import pytest
from everyrank.rollcall.blame import RULES, Blame, Evidence, blame
from everyrank.stack.frames import Frame, waits

NOBODY = Blame()


def in_all_reduce(rank: int, line: int = 40, number: int | None = None) -> Evidence:
    return Evidence(rank, waits=True, operation="all_reduce", location=f"test_x.py:{line}", number=number)


def in_recv(rank: int, number: int | None = None) -> Evidence:
    return Evidence(rank, waits=True, operation="recv", location="test_x.py:38", number=number)


def asleep(rank: int) -> Evidence:
    return Evidence(rank, waits=False, operation="lazy", location="test_x.py:30")


def unknown(rank: int) -> Evidence:
    return Evidence(rank)


def handling(rank: int) -> Evidence:
    return Evidence(rank, waits=True, operation="barrier", location="test_x.py:50", handles=True)


def ended(rank: int) -> Evidence:
    return Evidence(rank, ended=True)


def bad(rank: int, time: float = 1.0, failure: str = "ValueError: no") -> Evidence:
    return Evidence(rank, trouble=(time, failure))


ROWS = [
    # the rank that failed or died first
    ("failed first", [5], [*(in_all_reduce(rank) for rank in range(5)), bad(5), asleep(6), asleep(7)]),
    ("failed first", [1], [bad(0, time=2.0, failure="KeyError: late"), bad(1, time=1.0), in_all_reduce(2)]),
    ("failed first", [0, 2], [bad(0, time=1.0), in_recv(1), bad(2, time=3.0)]),
    ("failed first", [0, 1], [bad(0), bad(1)]),
    ("failed first", [1], [ended(0), bad(1, failure="was killed by SIGKILL"), in_all_reduce(2)]),
    # the rank that is handling an exception
    ("handles an exception", [1], [in_all_reduce(0), handling(1), in_all_reduce(2)]),
    ("handles an exception", [1], [asleep(0), handling(1)]),
    ("handles an exception", [1], [ended(0), handling(1)]),
    # the rank that does not wait for others
    ("does not wait", [1], [in_all_reduce(0), asleep(1)]),
    ("does not wait", [0], [asleep(0), in_all_reduce(1)]),
    ("does not wait", [2, 3], [in_all_reduce(0), in_all_reduce(1), asleep(2), asleep(3)]),
    ("does not wait", [1], [ended(0), asleep(1), in_all_reduce(2)]),
    ("does not wait", [0, 1, 2], [asleep(0), asleep(1), asleep(2), in_all_reduce(3)]),
    ("does not wait", [1], [unknown(0), asleep(1)]),
    # the rank that ended its test while the others wait
    ("ended its test", [1], [in_all_reduce(0), ended(1)]),
    ("ended its test", [0, 2], [ended(0), in_all_reduce(1), ended(2), in_recv(3)]),
    # the rank that names another root
    (
        "names another root",
        [2],
        [in_all_reduce(0, 5, 1), in_all_reduce(1, 5, 2), Evidence(2, waits=True, operation="broadcast", misled=True)],
    ),
    # the rank that waits in another call than most
    ("waits in another call", [2], [in_all_reduce(0), in_all_reduce(1), in_recv(2), in_all_reduce(3)]),
    ("waits in another call", [0], [in_all_reduce(0, 41), in_all_reduce(1), in_all_reduce(2)]),
    ("waits in another call", [1], [in_all_reduce(0, 5, 7), in_all_reduce(1, 5, 8), in_all_reduce(2, 5, 7)]),
    # the rank that is behind
    ("is behind", [1], [in_all_reduce(0, 5, 8), in_all_reduce(1, 5, 7)]),
    ("is behind", [0, 3], [in_recv(0, 1), in_recv(1, 2), in_all_reduce(2, 5, 2), in_all_reduce(3, 5, 1)]),
]


@pytest.mark.parametrize(("rule", "ranks", "evidence"), ROWS)
def test_the_first_rule_that_distinguishes_ranks_names_them(
    rule: str, ranks: list[int], evidence: list[Evidence]
) -> None:
    assert blame(evidence) == Blame(tuple(ranks), rule)


@pytest.mark.parametrize(("rule", "ranks", "evidence"), ROWS)
def test_the_order_of_the_evidence_changes_nothing(rule: str, ranks: list[int], evidence: list[Evidence]) -> None:
    assert blame(evidence[::-1]) == Blame(tuple(ranks), rule)


@pytest.mark.parametrize(
    "evidence",
    [
        [],
        [in_all_reduce(0)],
        [asleep(0)],
        [asleep(0), asleep(1)],
        [in_all_reduce(0), in_all_reduce(1)],
        [in_all_reduce(0), in_recv(1)],
        [in_all_reduce(0), in_all_reduce(1), in_recv(2), in_recv(3)],
        [in_all_reduce(0), unknown(1), in_all_reduce(2)],
        [in_all_reduce(0, 5, 7), in_all_reduce(1, 9, 7)],  # one collective, called from two lines
        [in_all_reduce(0, 5, 7), in_recv(1, 7)],
        [in_all_reduce(0, 5, 7), in_recv(1)],  # one is in no collective of the default group
        [ended(0), ended(1), in_all_reduce(2)],  # who did one more than most may be wrong just as well
        [ended(0), unknown(1)],
        [ended(0), ended(1)],
    ],
)
def test_without_evidence_no_rank_is_named(evidence: list[Evidence]) -> None:
    assert blame(evidence) == NOBODY


def test_every_rule_has_a_row() -> None:
    assert {rule for rule, _, _ in ROWS} == {name for name, _ in RULES}


# --- waiting, by the stack --------------------------------------------------------------------------------

PACKAGES = "/venv/lib/python3.12/site-packages"
USERS = Frame("/home/me/test_x.py", 3, "test_x")


@pytest.mark.parametrize(
    ("file", "function", "waiting"),
    [
        ("torch/distributed/distributed_c10d.py", "all_reduce", True),
        ("torch/distributed/distributed_c10d.py", "recv", True),
        ("torch/distributed/distributed_c10d.py", "get_rank", False),
        ("torch/distributed/distributed_c10d.py", "is_initialized", False),
        ("torch/distributed/rpc/api.py", "_rref_proxy_wait", True),
        ("torch/futures/__init__.py", "wait", True),
        ("torch/futures/__init__.py", "then", False),
        ("torch/autograd/graph.py", "_engine_run_backward", None),  # it computes, or waits for DDP's all-reduce
        ("torch/nn/functional.py", "linear", False),
    ],
)
def test_the_innermost_frame_shows_whether_a_rank_waits_for_others(
    file: str, function: str, waiting: bool | None
) -> None:
    assert waits((Frame(f"{PACKAGES}/{file}", 9, function), USERS)) is waiting


def test_without_a_stack_nothing_is_known() -> None:
    assert waits(()) is None


def test_a_wait_in_c_has_no_frame_so_the_line_shows_it(tmp_path: Path) -> None:
    test = tmp_path / "test_x.py"
    test.write_text("time.sleep(9)\nwork.wait()\n")
    assert waits((Frame(str(test), 1, "test_x"),)) is False
    assert waits((Frame(str(test), 2, "test_x"),)) is None


@pytest.mark.parametrize(("file", "waiting"), [("<stdin>", None), ("/home/me/gone.py", False)])
def test_a_line_that_is_unknown_shows_a_wait_only_of_what_was_typed(file: str, waiting: bool | None) -> None:
    assert waits((Frame(file, 1, "test_x"),)) is waiting
