"""Which rank holds which part of a tensor, as rectangles of a picture."""

from __future__ import annotations

import pytest
import torch
from everyrank.model.parity import ParityMapPart
from everyrank.parity.report.layout import Block, of_elements, of_part, picture
from everyrank.parity.values.dye import Listed, Strided
from everyrank.parity.values.parts import Part

Drawn = dict[tuple[int, int, int, int], list[int]]


def drawn(found: ParityMapPart) -> Drawn:
    return {(*region.box,): region.ranks for region in found.regions}  # type: ignore[misc]


def marked(blocks: list[Block] | None, shape: tuple[int, ...]) -> list[int]:
    """Return the flat positions that blocks hold."""
    assert blocks is not None
    seen = torch.zeros(shape, dtype=torch.bool)
    for block in blocks:
        indices = [torch.cat([torch.arange(start, end) for start, end in runs]) for runs in block]
        seen[torch.meshgrid(*indices, indexing="ij")] = True
    return seen.reshape(-1).nonzero().reshape(-1).tolist()


@pytest.mark.parametrize(
    ("elements", "shape", "blocks"),
    [
        (Strided(0, (4, 6), (6, 1)), (4, 6), 1),
        (Strided(12, (2, 6), (6, 1)), (4, 6), 1),
        (Strided(3, (4, 3), (6, 1)), (4, 6), 1),
        (Strided(0, (6, 4), (1, 6)), (4, 6), 1),  # transposed
        (Strided(0, (2, 6), (12, 1)), (4, 6), 1),  # every second row
        (Strided(4, (11,), (1,)), (4, 6), 3),  # a flat range
        (Strided(7, (3,), (1,)), (4, 6), 1),
        (Strided(5, (50,), (1,)), (3, 4, 6), 5),
        (Strided(2, (3,), (1,)), (6,), 1),
        (Listed(torch.tensor([0, 1, 4, 5, 6, 7, 10, 11])), (4, 6), 1),  # the outer columns of two rows
        (Listed(torch.tensor([3, 2, 20])), (4, 6), 2),
    ],
)
def test_elements_are_few_blocks_of_their_tensor(
    elements: Strided | Listed, shape: tuple[int, ...], blocks: int
) -> None:
    found = of_elements(elements, shape)
    assert marked(found, shape) == elements.ids().sort().values.tolist()
    assert found is not None
    assert len(found) == blocks


def test_elements_in_very_many_pieces_are_not_looked_at() -> None:
    assert of_elements(Listed(torch.arange(0, 20_000, 2)), (20_000,)) is None


def test_a_zigzag_part_of_the_positions_is_one_block_in_two_pieces() -> None:
    found = of_part(Part((None, torch.tensor([0, 1, 6, 7])), torch.Size((2, 8))), (2, 8, 5))
    assert found == [(((0, 2),), ((0, 2), (6, 8)), ((0, 5),))]


def test_rows_and_positions_that_are_one_dimension_are_drawn_as_two() -> None:
    found = of_part(Part((torch.arange(4, 8), None), torch.Size((8, 5)), flattened=True), (2, 4, 5))
    assert found == [(((1, 2),), ((0, 4),), ((0, 5),))]


def whole(*shape: int) -> Block:
    return tuple(((0, size),) for size in shape)


def test_replicas_are_one_rectangle() -> None:
    assert drawn(picture({0: [whole(4, 6)], 1: [whole(4, 6)]}, (4, 6))) == {(0, 4, 0, 6): [0, 1]}


def test_cut_parts_stand_beside_each_other_and_a_zigzag_part_stands_twice() -> None:
    held = {0: [(((0, 2),), ((0, 2), (6, 8)))], 1: [(((0, 2),), ((2, 6),))]}
    assert drawn(picture(held, (2, 8))) == {(0, 2, 0, 2): [0], (0, 2, 2, 6): [1], (0, 2, 6, 8): [0]}


def test_parts_that_overlap_are_shown_as_what_both_hold() -> None:
    held = {0: [(((0, 3),), ((0, 6),))], 1: [(((2, 4),), ((0, 6),))]}
    assert drawn(picture(held, (4, 6))) == {(0, 2, 0, 6): [0], (2, 3, 0, 6): [0, 1], (3, 4, 0, 6): [1]}


def test_what_no_rank_holds_is_a_rectangle_without_ranks() -> None:
    assert drawn(picture({1: [(((0, 3),), ((0, 6),))]}, (4, 6))) == {(0, 3, 0, 6): [1], (3, 4, 0, 6): []}


def test_a_vector_is_a_row() -> None:
    found = picture({0: [(((0, 3),),)], 1: [(((3, 6),),)]}, (6,))
    assert found.drawn == [0]
    assert drawn(found) == {(0, 1, 0, 3): [0], (0, 1, 3, 6): [1]}


def test_a_number_is_a_row_of_one_element() -> None:
    assert drawn(picture({0: [whole(1)], 1: [whole(1)]}, ())) == {(0, 1, 0, 1): [0, 1]}


@pytest.mark.parametrize(
    ("cut", "shown", "more"),
    [((), [0, 1], []), ((2,), [0, 2], []), ((1, 2), [1, 2], []), ((0, 1, 2), [0, 1], [2])],
)
def test_the_dimensions_that_are_cut_are_drawn(cut: tuple[int, ...], shown: list[int], more: list[int]) -> None:
    half = tuple(((0, 2),) if axis in cut else ((0, 4),) for axis in range(3))
    found = picture({0: [half]}, (4, 4, 4))
    assert (found.drawn, found.also_cut) == (shown, more)


def test_parts_that_are_too_fine_are_not_drawn() -> None:
    striped = tuple((start, start + 1) for start in range(0, 10_000, 2))
    assert picture({0: [(striped, ((0, 4),))]}, (10_000, 4)).regions == []
