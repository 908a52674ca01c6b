"""The law ``large-world``: what ranks state is added up, and one process is many ranks in turn."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from everyrank.fixtures.exemplars.sharded_optimizer import cut
from everyrank.suites.arena.cover import Box, Cover, Owned
from everyrank.suites.arena.fake_world import fake_world
from everyrank.suites.engine.contract import Point
from everyrank.suites.errors import BrokenAdapter, Deviation
from everyrank.suites.sharded_optimizer.laws.large_world import _check, _plan
from everyrank.suites.trainer.contract import CONTRACT
from everyrank.suites.trainer.laws.large_world import MODELS, _read, sampled
from everyrank.suites.trainer.subjects.ownership import part_of
from torch.distributed._shard.sharding_spec import ChunkShardingSpec
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor


def rows(first: int, count: int) -> Box:
    return (first, 0), (count, 2)


def cover(parts: list[list[Box]], copies: int = 1, ordered: bool = True, size: int | None = None) -> Cover:
    """Return the cover of a parameter of 4 x 2 of which each rank owns these boxes."""
    found = Cover({"p": (4, 2)}, size or len(parts), ordered)
    for rank, boxes in enumerate(parts):
        found.add(rank, {"p": Owned(tuple(boxes), copies)})
    return found


@pytest.mark.parametrize(
    ("parts", "copies"),
    [
        ([[rows(0, 4)]], 1),
        ([[rows(0, 3)], [rows(3, 1)], []], 1),
        ([[rows(0, 3)], [rows(3, 1)], [rows(4, 0)]], 1),
        ([[], [rows(0, 4)], []], 1),
        ([[rows(0, 4)], [rows(0, 4)]], 2),
        ([[rows(0, 2)], [rows(2, 2)], [rows(0, 2)], [rows(2, 2)]], 2),
        ([[rows(0, 2)], [rows(0, 2)], [rows(2, 2)], [rows(2, 2)]], 2),
        ([[((0, 0), (4, 1))], [((0, 1), (4, 1))]], 1),
        ([[rows(0, 1), rows(1, 1)], [rows(2, 1), rows(3, 1)]], 1),
    ],
)
def test_each_element_has_its_owners(parts: list[list[Box]], copies: int) -> None:
    cover(parts, copies).check_whole()


@pytest.mark.parametrize(
    ("parts", "copies", "match"),
    [
        ([[rows(0, 5)]], 1, "rank 0 of 1: p: the box .* is not inside of"),
        ([[rows(-1, 2)]], 1, "is not inside of"),
        ([[((0,), (4,))]], 1, "is not inside of"),
        ([[rows(0, 3), rows(2, 2)]], 1, "owns elements twice"),
        ([[rows(0, 3)], [rows(2, 2)]], 1, "rank 1 of 2: p: .* has elements that 1 other ranks own"),
        ([[rows(0, 1)], [rows(2, 2)]], 1, "this rank owns .* at .2, 0., and the one before .* at .0, 0."),
        ([[rows(0, 3)], []], 1, "this rank owns nothing, and the one before"),
        ([[rows(0, 2)], [rows(0, 2)]], 2, "the last rank owns .*, which is not the end"),
        ([[rows(2, 2)], [rows(0, 2)]], 1, "the first rank owns"),
        ([[((0, 0), (4, 1))], [((1, 1), (3, 1))]], 1, "1 of 8 elements have not 1 owner but 0"),
        ([[rows(0, 4)], [rows(0, 4)]], 0, "is owned by 0 ranks"),
        ([[rows(0, 4)], [rows(0, 4)]], 3, "is owned by 3 ranks"),
    ],
)
def test_what_cannot_be_is_a_deviation(parts: list[list[Box]], copies: int, match: str) -> None:
    with pytest.raises(Deviation, match=match):
        cover(parts, copies).check_whole()


@pytest.mark.parametrize(
    ("parts", "copies"),
    [([[rows(0, 2)], []], 1), ([[], []], 1), ([[rows(0, 4)], [rows(0, 2)]], 2), ([[rows(0, 4)], []], 2)],
)
def test_elements_without_their_owners_are_counted(parts: list[list[Box]], copies: int) -> None:
    found = cover(parts, copies, ordered=False)
    with pytest.raises(Deviation, match="elements have not"):
        found.check_whole()


def test_a_subject_may_declare_another_order() -> None:
    parts = [[rows(2, 2)], [rows(0, 2)]]
    with pytest.raises(Deviation, match="the first rank owns"):
        cover(parts)
    cover(parts, ordered=False).check_whole()


def test_what_is_held_is_what_is_owned() -> None:
    part = Owned((rows(0, 2),), 1, held=(1, 2))
    with pytest.raises(Deviation, match=r"holds a tensor of .1, 2., and owns"):
        Cover({"p": (4, 2)}, 2).add(0, {"p": part})


def test_ranks_state_the_same_number_of_owners_and_all_names() -> None:
    found = Cover({"p": (4, 2)}, 3)
    found.add(0, {"p": Owned((rows(0, 4),), 2)})
    with pytest.raises(Deviation, match="is owned by 1 rank, as this one states; another stated 2"):
        found.add(1, {"p": Owned((rows(0, 4),), 1)})
    with pytest.raises(Deviation, match=r"owns\(\) and the model differ in p"):
        found.add(1, {})


@pytest.mark.parametrize("answer", [None, {"p": 1}, {"p": ([(0, 4)], 1)}, {"p": ([rows(0, 1)], None)}])
def test_another_form_is_a_broken_adapter(answer: object) -> None:
    with pytest.raises(BrokenAdapter, match=r"owns\(\) must return"):
        _read(answer, {}, "rank 0 of 1: ")


@pytest.mark.parametrize("size", [1024, 16384])
def test_neighbours_are_asked_at_the_ends_of_worlds_and_parameters(size: int) -> None:
    shapes = {name: tuple(value.shape) for name, value in MODELS["long"]().named_parameters()}
    ranks = sampled(shapes, size)
    last = (70_001 - 1) // -(-70_001 // size)
    overflow = 2**16 // -(-70_001 // size)
    assert {0, 1, 255, 256, 19, 20, last, last + 1, overflow, overflow + 1, size - 2, size - 1} <= set(ranks)
    assert ranks == sorted(set(ranks))
    assert len(ranks) <= 18
    assert ranks == sampled(shapes, size)


def test_one_process_is_several_ranks_and_then_none() -> None:
    """DTensor keeps answers by meshes, and meshes of two ranks are equal."""
    found = []
    for rank in (0, 1, 7):
        with fake_world(rank, 8):
            assert (dist.get_rank(), dist.get_world_size()) == (rank, 8)
            layer = torch.nn.Linear(1, 15, bias=False)
            fully_shard(layer, mesh=init_device_mesh("cpu", (8,)))
            assert isinstance(layer.weight, DTensor)
            found.append((part_of(layer.weight), tuple(layer.weight.to_local().shape)))
    assert found == [
        (([((0, 0), (2, 1))], 1), (2, 1)),
        (([((2, 0), (2, 1))], 1), (2, 1)),
        (([((14, 0), (1, 1))], 1), (1, 1)),
    ]
    assert not dist.is_initialized()


def test_an_error_in_a_large_world_leaves_no_group() -> None:
    with pytest.raises(ZeroDivisionError), fake_world(1, 4):
        _ = 1 / 0
    assert not dist.is_initialized()


def test_a_subject_with_sizes_claims_simulated_worlds_by_their_sizes() -> None:
    def chosen(*sizes: int) -> list[Point]:
        return [point for law, point in CONTRACT.points(sizes) if law.id == "large-world"]

    assert not chosen(1, 2, 3, 4)
    assert [point.label for point in chosen(1024)] == [
        f"{name}-ws1024" for name in ("long", "scalars", "empty", "layers")
    ]
    assert [point.size for point in chosen(256, 16384)] == [1, 1]


@pytest.mark.filterwarnings("ignore:Please use DTensor instead:FutureWarning")
def test_a_plan_gives_each_rank_one_chunk_and_the_asked_rank_its_tensor() -> None:
    spec = ChunkShardingSpec(0, [f"rank:{rank}/cpu" for rank in range(4)])
    with fake_world(2, 4):
        sharded = cut(torch.ones(5, 2), spec)
        plan = _plan(sharded)
        _check(plan, sharded, 2, 4)
        with pytest.raises(Deviation, match="rank 1 of 4 has the shards"):
            _check(plan, sharded, 1, 4)
        with pytest.raises(Deviation, match="rank 0 of 4 has 2 chunks that have rows"):
            _check({0: plan[0] + plan[1], 2: plan[2], 3: plan[3]}, sharded, 2, 4)
        with pytest.raises(Deviation, match="3 ranks: a shard is on rank 3"):
            _check(plan, sharded, 2, 3)
        with pytest.raises(Deviation, match="and the one before nothing"):
            _check({rank: boxes for rank, boxes in plan.items() if rank == 2}, sharded, 2, 4)
