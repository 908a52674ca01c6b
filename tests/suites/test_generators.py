"""Models of ``trainer`` that draw numbers in their forwards: each part has a generator, on both sides the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from everyrank.fixtures.exemplars.trainer import DataParallel
from everyrank.fixtures.rogues.trainer import ROGUES
from everyrank.suites.moves.player import play
from everyrank.suites.moves.script import Script, call
from everyrank.suites.moves.shorten import shortest
from everyrank.suites.trainer.features import FEATURES
from everyrank.suites.trainer.generators import Generators, generator_of
from everyrank.suites.trainer.model import Model, Param
from everyrank.suites.trainer.subjects.exemplars import DATA_PARALLEL
from torch.utils.checkpoint import checkpoint

MODEL = Model(2, params=(Param("p0", (3,)),), variant="momentum", draws=True)
LONG = Script(
    MODEL,
    (
        call("step"),
        call("miss"),
        call("step", parts=2, max_norm=0.05),
        call("save"),
        call("step", times=2),
        call("load"),
        call("miss", parts=2),
        call("step"),
        call("load", fresh=True),
        call("step", parts=2),
    ),
)


def test_a_generator_goes_on_where_it_was_and_the_others_do_not_move() -> None:
    generators: Generators = {}
    drawn = []
    before = torch.get_rng_state()
    for part in (0, 1, 0):
        with generator_of(part, generators):
            drawn.append(torch.rand(3))
    with generator_of(0, {}):
        assert torch.equal(torch.cat([drawn[0], drawn[2]]), torch.cat([torch.rand(3), torch.rand(3)]))
    assert not torch.equal(drawn[0], drawn[1])
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.world(2, timeout=120)
def test_who_goes_through_each_microbatch_once_has_the_numbers_of_the_reference(process_group: Any) -> None:
    assert play(DATA_PARALLEL, LONG) == ""


class Checkpoints(DataParallel):
    """Keeps no activations, and computes them again with the numbers that were drawn."""

    def backward(self, batches: Sequence[Any]) -> torch.Tensor:
        losses = []
        for batch in batches:
            loss = checkpoint(batch.loss, self.model, use_reentrant=False)
            loss.backward()
            losses.append(loss.detach())
        return torch.stack(losses).sum()


@pytest.mark.world(2, timeout=120)
def test_who_computes_activations_again_with_the_same_numbers_is_right(process_group: Any) -> None:
    assert play(replace(DATA_PARALLEL, name="checkpoints", build=Checkpoints), LONG) == ""


class DrawsAfterItsForwards(DataParallel):
    def backward(self, batches: Sequence[Any]) -> torch.Tensor:
        loss = super().backward(batches)
        torch.rand(())
        return loss


@pytest.mark.world(2)
def test_what_is_drawn_besides_is_seen_before_the_next_step(process_group: Any) -> None:
    subject = replace(DATA_PARALLEL, name="draws-after", build=DrawsAfterItsForwards)
    problem = "parity.train: move 1, step(): on rank 0: the step has drawn more or fewer numbers than its forwards do"
    assert (play(subject, Script(MODEL, (call("step"),))) or "").splitlines()[0] == problem
    # A model that draws nothing asks for nothing.
    assert play(subject, Script(replace(MODEL, draws=False), (call("step"), call("step")))) == ""


@pytest.mark.world(2, timeout=120)
@pytest.mark.parametrize(
    ("name", "moves"),
    [
        ("computes-earlier-microbatches-again", [call("step", parts=2)]),
        ("seeds-all-ranks-alike-after-a-load", [call("step"), call("save"), call("load"), call("step")]),
    ],
)
def test_a_rogue_of_generators_is_found_with_a_short_script(name: str, moves: list[Any], process_group: Any) -> None:
    (rogue,) = [rogue for rogue in ROGUES if rogue.name == name]
    subject = replace(DATA_PARALLEL, name=name, build=rogue.build)
    found = shortest(subject, LONG, frozenset(FEATURES))
    assert list(found.script.moves) == moves
    assert found.script.model.draws
