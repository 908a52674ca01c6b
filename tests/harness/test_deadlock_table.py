"""When a world that stands still can never continue: everyrank.controller.deadlock on made-up statements."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from everyrank.controller.deadlock import deadlock
from everyrank.controller.standstill import rest
from everyrank.wire.messages import Begun, Collective, Handled, WitnessStatement

EVER = float("inf")


def waits(name: str = "all_reduce", number: int = 5, location: str = "a.py:3", **more: Any) -> WitnessStatement:
    """Return the statement of a rank of two that waits in a collective of the default group."""
    group, tensors = more.pop("group", "0"), more.pop("tensors", "(2,) Float")
    fields: dict[str, Any] = {"operation": name, "members": [0, 1], "patience": 1800.0, "before": {"0": 0}, **more}
    collectives = [Collective(group, number, name, tensors)]
    return WitnessStatement(1, 99, location=location, group=group, number=number, collectives=collectives, **fields)


def in_p2p(name: str, peer: int | None, **more: Any) -> WitnessStatement:
    fields: dict[str, Any] = {"kind": "message", "members": [0, 1], "patience": 1800.0, **more}
    return WitnessStatement(1, 99, operation=name, location="a.py:7", group="0", peer=peer, **fields)


def ended(came_to: int = 0, name: str = "all_reduce", **more: Any) -> WitnessStatement:
    collectives = [Collective("0", number, name, "(2,) Float") for number in range(1, came_to + 1)]
    return WitnessStatement(1, 99, collectives=collectives, **more)


def cause(*statements: WitnessStatement, gone: tuple[int, ...] = (), left: float = EVER) -> str:
    found = deadlock(dict(enumerate(statements)), frozenset(gone), left)
    return found.cause if found is not None else ""


# --- certain ------------------------------------------------------------------------------------------------


def test_a_rank_that_ended_will_not_come() -> None:
    assert cause(waits(), ended(4), gone=(1,)) == "rank 1 ended its test without reaching this all_reduce (a.py:3)"


def test_a_rank_that_handles_an_exception_is_named_before_one_that_ended() -> None:
    """The other had perhaps nothing more to do: the exception took this rank where it is."""
    handles = Handled("ValueError: bad batch", "a.py:1")
    assert cause(waits(handles=handles), ended(4), gone=(1,)) == (
        "rank 0 waits in its 5th collective, all_reduce at a.py:3, while handling ValueError: bad batch (:1); rank 1 "
        "ended its test"
    )


def test_ranks_that_ended_will_not_come() -> None:
    of_four = [waits(members=[0, 1, 2, 3]), ended(), waits(members=[0, 1, 2, 3]), ended()]
    assert cause(*of_four, gone=(1, 3)) == "ranks 1,3 ended their test without reaching this all_reduce (a.py:3)"


def test_a_rank_that_ended_will_not_send_nor_receive() -> None:
    gone = {"gone": (1,)}
    assert cause(in_p2p("recv", 1), ended(), **gone) == (  # type: ignore[arg-type]
        "rank 1 ended its test without sending what this recv waits for (a.py:7)"
    )
    assert cause(in_p2p("send", 1), ended(), **gone) == (  # type: ignore[arg-type]
        "rank 1 ended its test without receiving what this send offers (a.py:7)"
    )


def test_ranks_in_different_collectives_wait_for_each_other() -> None:
    assert cause(waits(), waits("broadcast", location="a.py:9")) == (
        "rank 0 waits in its 5th collective, all_reduce at a.py:3; rank 1 in its 5th, broadcast at a.py:9"
    )


def test_ranks_in_collectives_of_different_numbers_wait_for_each_other() -> None:
    found = deadlock({0: waits(number=6), 1: waits(number=5)}, frozenset(), EVER)
    assert found is not None
    assert found.numbers == {0: 6, 1: 5}
    assert found.cause.startswith("rank 0 waits in its 6th collective, all_reduce at a.py:3; rank 1 in its 5th, ")


def test_ranks_whose_tensors_do_not_fit_wait_for_each_other() -> None:
    assert cause(waits(), waits(tensors="(3,) Float")) == (
        "rank 0 waits in its 5th collective, all_reduce of (2,) Float at a.py:3; "
        "rank 1 in its 5th, all_reduce of (3,) Float at a.py:3"
    )


def test_a_rank_that_waits_elsewhere_may_have_passed_by_with_another_tensor() -> None:
    later = waits("barrier", number=6, location="a.py:4", tensors="")
    passed = msgspec.structs.replace(
        later, collectives=[Collective("0", 5, "all_reduce", "(3,) Float"), *later.collectives]
    )
    assert cause(waits(), passed) == (
        "rank 0 waits in its 5th collective, all_reduce of (2,) Float at a.py:3; "
        "rank 1 in its 6th, barrier at a.py:4; rank 1 has left its 5th, all_reduce of (3,) Float"
    )


def test_a_rank_that_ended_may_have_passed_by_with_another_tensor() -> None:
    assert cause(waits(tensors="(3,) Float"), ended(5), gone=(1,)) == (
        "rank 0 waits in its 5th collective, all_reduce of (3,) Float at a.py:3; "
        "rank 1 ended its test, in which that was all_reduce of (2,) Float"
    )


def test_collectives_are_counted_from_the_start_of_the_test() -> None:
    assert "in its 2nd collective" in cause(waits(before={"0": 3}), waits("barrier", before={"0": 3}))
    assert cause(waits(before={}), waits("barrier", before={})).startswith(
        "rank 0 waits in all_reduce at a.py:3; rank 1"
    )


def test_two_that_both_receive_wait_for_each_other() -> None:
    assert cause(in_p2p("recv", 1), in_p2p("recv", 0)) == "ranks 0,1 wait in recv at a.py:7"


def test_two_with_different_tags_wait_for_each_other() -> None:
    receives = in_p2p("recv", 1, tag=1, awaits="recv from rank 1 with the tag 1")
    sends = in_p2p("send", 0, tag=2, awaits="send to rank 0 with the tag 2")
    assert cause(receives, sends) == (
        "rank 0 waits in recv from rank 1 with the tag 1 at a.py:7; "
        "rank 1 waits in send to rank 0 with the tag 2 at a.py:7"
    )


def test_a_few_of_many_locations_are_named() -> None:
    members = list(range(8))
    text = cause(*(waits(location=f"a.py:{rank}", number=rank + 1, members=members) for rank in members))
    assert text.count("all_reduce") == 3
    assert text.endswith("; and 5 more groups")


@pytest.mark.parametrize(
    ("number", "word"), [(1, "1st"), (2, "2nd"), (3, "3rd"), (11, "11th"), (21, "21st"), (112, "112th")]
)
def test_ordinals_are_written_as_in_english(number: int, word: str) -> None:
    assert f"in its {word} collective" in cause(waits(number=number), waits("barrier", number=number))


def in_new_group(**more: Any) -> WitnessStatement:
    fields: dict[str, Any] = {"members": [0, 1], "patience": 1800.0, **more}
    return WitnessStatement(1, 99, operation="new_group", location="a.py:1", kind="group", sleep="polls", **fields)


def in_future(*others: Begun) -> WitnessStatement:
    return WitnessStatement(
        1, 99, operation="wait", location="a.py:4", kind="future", others=list(others), patience=1800.0
    )


def test_a_rank_that_ended_will_not_make_a_group() -> None:
    assert (
        cause(in_new_group(), ended(), gone=(1,)) == "rank 1 ended its test without reaching this new_group (a.py:1)"
    )


def test_a_rank_that_waits_in_another_call_will_not_make_a_group() -> None:
    assert cause(in_new_group(), waits()) == (
        "rank 0 waits in new_group at a.py:1; rank 1 waits in its 5th collective, all_reduce at a.py:3"
    )


def test_nothing_completes_a_future_but_a_collective_that_all_have_begun() -> None:
    nothing = "rank 0 waits in wait at a.py:4 for a future that nothing can complete"
    assert cause(in_future(), ended(), gone=(1,)) == nothing
    assert cause(in_future(Begun("0", 5, [0, 1])), ended(4), gone=(1,)) == nothing
    assert cause(in_future(Begun("0", 5, [0, 1])), ended(5), gone=(1,)) == ""


def test_each_collective_that_a_rank_may_wait_for_must_be_in_vain() -> None:
    begun = {"sleep": "ever", "others": [Begun("1", 2, [0, 1])]}
    came = msgspec.structs.replace(ended(4), reached={"1": 2})
    assert cause(waits(**begun), ended(4), gone=(1,)) != ""
    assert cause(waits(**begun), came, gone=(1,)) == ""


def test_ranks_that_name_different_roots_wait_for_each_other() -> None:
    assert cause(waits("broadcast", root=0), waits("broadcast", root=1)) == (
        "rank 0 waits in its 5th collective, broadcast from rank 0 at a.py:3; "
        "rank 1 in its 5th, broadcast from rank 1 at a.py:3"
    )
    assert cause(waits("broadcast", root=0), waits("broadcast")) == ""


def test_ranks_are_misled_that_wait_for_a_root_which_takes_another_for_it() -> None:
    roots = (0, None, 1)
    statements = {
        rank: waits("broadcast", root=root, members=[0, 1, 2])
        if root is not None
        else waits(number=6, members=[0, 1, 2])
        for rank, root in enumerate(roots)
    }
    found = deadlock(statements, frozenset(), EVER)
    assert found is not None
    assert found.misled == {2}
    each_its_own = deadlock({0: waits("reduce", root=0), 1: waits("reduce", root=1)}, frozenset(), EVER)
    assert each_its_own is not None
    assert each_its_own.misled == frozenset()


def test_groups_are_named_if_ranks_wait_in_different_groups() -> None:
    first = waits(group="1", made_at="a.py:1", number=1, before={"1": 0})
    second = waits(group="2", made_at="a.py:2", number=1, before={"2": 0})
    default = waits(number=1)
    hashed = waits(group="2f" * 8, made_at="a.py:2", number=1, before={"2f" * 8: 0})
    assert cause(first, second) == (
        "rank 0 waits in its 1st collective of group 1 (ranks 0,1, made at a.py:1), all_reduce at a.py:3; "
        "rank 1 in its 1st of group 2 (ranks 0,1, made at a.py:2), all_reduce at a.py:3"
    )
    assert "rank 0 waits in its 1st collective of the default group, all_reduce" in cause(default, second)
    assert "of group (ranks 0,1, made at a.py:2)," in cause(first, hashed)


# --- not certain: the world waits ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statements", "gone"),
    [
        ([waits(), WitnessStatement(1, 99)], ()),  # one is not in a collective
        ([waits(), ended(4, may_act="it has other threads")], (1,)),
        ([waits(may_act="it has set a timer"), ended(4)], (1,)),
        ([waits(patience=5.0), ended(4)], (1,)),  # its group has a time limit of its own
        ([waits(), waits()], ()),  # both are in the same one
        ([waits(location="a.py:3"), waits(location="b.py:9")], ()),
        ([waits(), ended(5)], (1,)),  # it came to this one, and what it began may go on
        ([in_p2p("recv", 1), in_p2p("send", 0)], ()),
        ([in_p2p("recv", None), in_p2p("send", 0)], ()),
        ([in_p2p("recv", 1, tag=7), in_p2p("send", 0, tag=7)], ()),
        ([in_p2p("recv", None, members=[0, 1, 2]), ended(), in_p2p("send", 0)], (1,)),
        ([waits("scatter", tensors="(2,), (2,) Float"), waits("scatter", tensors="(2,) Float")], ()),
        ([ended(), ended()], (0, 1)),
        ([in_new_group(), in_new_group()], ()),
        ([in_new_group(members=[0]), waits(members=[0, 1])], ()),
        ([in_p2p("wait", None), in_p2p("wait", None)], ()),  # one may receive what the other sends
    ],
)
def test_without_certainty_there_is_no_deadlock(statements: list[WitnessStatement], gone: tuple[int, ...]) -> None:
    assert cause(*statements, gone=gone) == ""


def test_a_groups_own_time_limit_counts_only_before_the_deadline() -> None:
    statements = [waits(patience=60.0), ended(4)]
    assert cause(*statements, gone=(1,), left=61.0) == ""
    assert cause(*statements, gone=(1,), left=59.0) != ""


def test_a_rank_that_ended_long_after_that_collective_may_have_done_its_part() -> None:
    later = msgspec.structs.replace(ended(), collectives=[Collective("0", 90, "all_reduce", "(2,) Float")])
    assert cause(waits(), later, gone=(1,)) == ""


# --- a world that may hang ----------------------------------------------------------------------------------


def test_where_ranks_rest_is_described_as_in_a_roll_call() -> None:
    torchs = ("/venv/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", 9, "all_reduce")
    waiting, asleep = ([*inner, ("/home/me/test_x.py", 4, "test_x")] for inner in ([torchs], []))
    statements = {
        rank: WitnessStatement(1, 99, stack=stack) for rank, stack in enumerate([waiting, asleep, waiting, asleep])
    }
    assert rest(statements, frozenset({3})) == (
        "rank 1 is in test_x at test_x.py:4; ranks 0,2 wait in all_reduce at test_x.py:4"
    )
