"""A training goes on on other ranks, by other plans: correct ways are silent, and each mistake is named."""

from __future__ import annotations

import re
from typing import Any

import pytest
from everyrank.parity import Strayed, Unusable, reshard

from tests.parity.reshard import ways
from tests.parity.reshard.rogues import ROGUES, Rogue


def arguments(way: ways.Checkpoint, **named: Any) -> dict[str, Any]:
    given = {
        "model": ways.Net,
        "layouts": [(4, ways.sharded), (2, ways.sharded), (3, ways.sharded)],
        "batch": ways.batch,
        "loss": ways.loss,
        "optimizer": ways.adamw,
        "save": way.save,
        "load": way.load,
    }
    return {**given, **named}


@pytest.mark.world(4)
def test_a_sharded_training_goes_on_on_other_numbers_of_ranks(process_group: Any) -> None:
    report = reshard(**arguments(ways.Checkpoint()))
    assert report.text() == "reshard: 6 steps on 4, 2, 3 ranks, in turn, train as one process does"


PLANS = {
    "sharded-to-tensor-parallel": [(4, ways.sharded), (2, ways.tensor_parallel)],
    "tensor-parallel-to-sharded": [(2, ways.tensor_parallel), (3, ways.sharded)],
    "replicas-to-one": [(2, ways.replicated), (1, lambda model: model)],
}


@pytest.mark.world(4)
@pytest.mark.parametrize("layouts", PLANS.values(), ids=PLANS)
def test_it_goes_on_by_another_plan(process_group: Any, layouts: Any) -> None:
    assert reshard(**arguments(ways.Checkpoint(), layouts=layouts)).passed


@pytest.mark.world(3)
def test_it_goes_on_by_a_pipeline_and_back(process_group: Any) -> None:
    layouts = [(3, ways.sharded), (2, ways.Stages, ways.step_of_stages), (2, ways.tensor_parallel)]
    assert reshard(**arguments(ways.Checkpoint(), layouts=layouts)).passed


WAYS = {"later": ways.Later(), "whole": ways.Whole()}


@pytest.mark.world(3)
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_it_is_saved_in_another_way(process_group: Any, way: ways.Checkpoint) -> None:
    assert reshard(**arguments(way, layouts=[(2, ways.sharded), (3, ways.sharded)])).passed


@pytest.mark.world(3)
def test_rates_of_a_scheduler_go_on(process_group: Any) -> None:
    layouts = [(2, ways.sharded), (3, ways.sharded)]
    assert reshard(**arguments(ways.WithScheduler(), layouts=layouts, optimizer=ways.scheduled)).passed


@pytest.mark.world(3)
@pytest.mark.parametrize("rogue", ROGUES.values(), ids=ROGUES)
def test_a_mistake_is_named_in_the_first_line(process_group: Any, rogue: Rogue) -> None:
    with pytest.raises(Strayed) as caught:
        reshard(**arguments(rogue.way, layouts=rogue.layouts, optimizer=rogue.optimizer))
    assert re.match(rogue.begins, str(caught.value)), str(caught.value)


@pytest.mark.world(2)
def test_code_that_fails_in_a_layout_is_named_with_its_rank(process_group: Any) -> None:
    def load(*_: Any) -> None:
        raise OSError("no such checkpoint")

    with pytest.raises(Unusable, match=r"^layout 2 of layouts= fails on rank 0: OSError: no such checkpoint"):
        reshard(**arguments(ways.Checkpoint(), layouts=[(2, ways.sharded)] * 2, load=load))


@pytest.mark.world(2)
@pytest.mark.parametrize("layout", [(2, ways.sharded, None, None), 2], ids=["four", "number"])
def test_what_is_no_layout_is_named(process_group: Any, layout: Any) -> None:
    with pytest.raises(Unusable, match=r"^layouts= has .*: pass pairs of a number of ranks and a function, or "):
        reshard(**arguments(ways.Checkpoint(), layouts=[(2, ways.sharded), layout]))


@pytest.mark.world(2)
def test_a_plain_model_that_does_not_train_is_named(process_group: Any) -> None:
    def loss(model: Any, batch: Any) -> Any:
        kept = ways.loss(model, batch).sigmoid()
        squared = kept * kept
        kept.add_(1)
        return squared

    with pytest.raises(Unusable, match=r"^the plain model does not train, .* modified by an inplace operation"):
        reshard(**arguments(ways.Checkpoint(), layouts=[(2, ways.sharded)] * 2, loss=loss))
