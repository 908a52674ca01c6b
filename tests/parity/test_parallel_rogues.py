"""Rogues of the parallel subjects part from the plain model: one that changes nothing proves nothing."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
import torch

from tests.parity.parallel import check
from tests.parity.parallel.rogue import Rogue
from tests.parity.parallel.rogues import ROGUES
from tests.parity.parallel.subjects import SUBJECTS

#: Rogues in a world of two share a test for each module. Larger ones have meshes, of which torch keeps by their shape
#: what it once knew of their groups: one to a test.
MODULES = sorted({rogue.subject.__module__ for rogue in ROGUES.values()})
SMALL = [
    pytest.param(
        [rogue for rogue in ROGUES.values() if (rogue.subject.__module__, rogue.size) == (module, 2)],
        marks=[pytest.mark.smoke] if module == MODULES[0] else [],
    )
    for module in MODULES
]
LARGE = [
    pytest.param([rogue], marks=pytest.mark.world(rogue.size), id=name)
    for name, rogue in ROGUES.items()
    if rogue.size != 2
]


@pytest.mark.group("parallel")
@pytest.mark.world(2)
@pytest.mark.parametrize("rogues", SMALL, ids=[module.rsplit(".", 1)[-1] for module in MODULES])
def test_every_rogue_parts_from_the_plain_model_on_some_rank(rogues: list[Rogue], process_group: Any) -> None:
    assert [rogue.name for rogue in rogues if not _parts(rogue)] == []


@pytest.mark.group("parallel")
@pytest.mark.parametrize("rogues", LARGE)
def test_a_rogue_of_larger_worlds_parts_from_the_plain_model(rogues: list[Rogue], process_group: Any) -> None:
    assert [rogue.name for rogue in rogues if not _parts(rogue)] == []


def _parts(rogue: Rogue) -> bool:
    """Return whether the rogue lies farther from the plain model than an honest subject, after one step or two."""
    return any(_parts_within(rogue, steps) for steps in (1, 2))


def _parts_within(rogue: Rogue, steps: int) -> bool:
    with closing(rogue.subject()) as subject:
        found = check.deviations(subject, getattr(torch, rogue.dtype), steps)
    exact = 1e-9 if "rounded" in rogue.patterns else 1e-6
    bound = exact if rogue.dtype == "float64" else 0.1
    largest = torch.tensor(max(0.0 if error <= bound else 1.0 for error in found.values()))
    torch.distributed.all_reduce(largest)
    return bool(largest > 0)


def test_every_rogue_changes_an_honest_subject() -> None:
    honest = set(SUBJECTS.values())
    assert [name for name, rogue in ROGUES.items() if not honest & set(rogue.subject.__mro__[1:])] == []


def test_no_rogue_is_an_honest_subject() -> None:
    assert not ROGUES.keys() & SUBJECTS.keys()
