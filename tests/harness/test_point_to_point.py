"""A world whose ranks sent different numbers of messages is kept, if each message was received."""

from __future__ import annotations

from everyrank.controller.point_to_point import not_received
from everyrank.reports.runfile.read import read
from everyrank.wire.messages import Record

from tests.inner import Project

MESSAGES = """
    import pytest, torch
    import torch.distributed as dist

    pytestmark = pytest.mark.world(3)

    def value():
        return torch.zeros(2)

    def pass_on(rank, size=3, **options):
        if rank:
            dist.recv(value(), rank - 1, **options)
        if rank + 1 < size:
            dist.send(value(), rank + 1, **options)

    def test_a_chain(world, process_group):
        pass_on(world.rank)

    def test_a_batch(world, process_group):
        sends = dist.P2POp(dist.isend, value(), (world.rank + 1) % 3)
        around = [sends, dist.P2POp(dist.irecv, value(), world.rank - 1)]
        mine = around[:1] if world.rank == 0 else around if world.rank == 1 else around[1:]
        for work in dist.batch_isend_irecv(mine):
            work.wait()

    def test_from_anyone(world, process_group):
        if world.rank == 0:
            assert {dist.recv(value()), dist.recv(value())} == {1, 2}
        else:
            dist.send(value(), 0)

    def test_with_a_tag(world, process_group):
        pass_on(world.rank, tag=7)

    def test_objects(world, process_group):
        if world.rank == 1:
            dist.send_object_list(["x"], 2)
        elif world.rank == 2:
            dist.recv_object_list([None], 1)

    def test_nobody_receives(world, process_group):
        if world.rank == 0:
            dist.isend(value(), 1)

    def test_nobody_sends(world, process_group):
        if world.rank == 2:
            dist.irecv(value(), 0, tag=3)

    def test_all_send_and_nobody_receives(world, process_group):
        dist.isend(value(), (world.rank + 1) % 3)

    def test_one_collective_more(world, process_group):
        if world.rank == 1:
            dist.all_reduce(value(), async_op=True)

    def test_one_collective_more_in_place_of_a_message(world, process_group):
        if world.rank == 0:
            dist.send(value(), 1)
        elif world.rank == 1:
            dist.recv(value(), 0)
        else:
            dist.all_reduce(value(), async_op=True)
"""

MORE = "the ranks did not all issue the same number of collectives"


def test_a_message_that_was_received_ends_no_world(project: Project) -> None:
    project.write("test_messages.py", MESSAGES)
    inner = project.run("-p", "no:randomly", "--run-file", "run.jsonl")
    assert set(inner.outcomes().values()) == {"passed"}, inner.out
    cases = {case.id.partition("::")[2]: case for case in read(project.folder / "run.jsonl").cases}
    assert {name: case.not_kept for name, case in cases.items()} == {
        "test_a_chain": "",
        "test_a_batch": "",
        "test_from_anyone": "",
        "test_with_a_tag": "",
        "test_objects": "",
        "test_nobody_receives": "rank 0 sent rank 1 a message that it did not receive",
        "test_nobody_sends": "rank 2 asked rank 0 for a message with the tag 3 that it did not send",
        "test_all_send_and_nobody_receives": "rank 0 sent rank 1 a message that it did not receive; "
        "rank 1 sent rank 2 a message that it did not receive; "
        "rank 2 sent rank 0 a message that it did not receive",
        "test_one_collective_more": MORE,
        "test_one_collective_more_in_place_of_a_message": MORE,
    }
    assert len({cases[name].world for name in list(cases)[:6]}) == 1


def record(sent: dict[str, int], asked: dict[str, int]) -> Record:
    return Record("", [], [], [], [], 0, sent=sent, asked=asked)


def test_messages_are_matched_by_pair_and_tag() -> None:
    crossed = {0: record({"1/0": 1}, {}), 1: record({}, {"2/0": 1}), 2: record({}, {})}
    assert not_received(crossed) == [
        "rank 0 sent rank 1 a message that it did not receive",
        "rank 1 asked rank 2 for a message that it did not send",
    ]
    assert not_received({0: record({"1/5": 2}, {}), 1: record({}, {"0/5": 2})}) == []
    assert not_received({0: record({"1/5": 2}, {}), 1: record({}, {"0/5": 1, "any/5": 1})}) == []
    assert not_received({0: record({"1/5": 2}, {}), 1: record({}, {"0/5": 2, "any/5": 1})}) == [
        "rank 1 asked for a message that no rank sent"
    ]
    assert not_received({0: record({"1/5": 1}, {}), 1: record({}, {"any/6": 1})}) == [
        "rank 0 sent rank 1 a message with the tag 5 that it did not receive",
        "rank 1 asked for a message that no rank sent",
    ]
