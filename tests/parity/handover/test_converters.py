"""Converters between a trainer's model and an engine's: each mistake is named, and correct ones are silent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from everyrank.parity import Unlike, Unusable, handover
from torch import nn

from tests.parity.handover.models import Converter, Engine, Trainer, tokens
from tests.parity.handover.rogues import ROGUES, Rogue


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors gain nothing by more threads, which wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("rogue", ROGUES.values(), ids=ROGUES)
def test_a_mistake_is_named_in_the_first_line(rogue: Rogue) -> None:
    with pytest.raises(Unlike) as caught:
        handover(**rogue.arguments())
    assert re.match(rogue.begins, str(caught.value)), str(caught.value)
    assert len(str(caught.value).splitlines()) < 40


def _tied() -> Any:
    return Trainer(tied=True)


def _leaves_twins_out(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in Converter()(state).items() if name != "head.weight"}


HONEST = {
    "identical": {"model": Trainer, "other": Trainer},
    "fused": {"model": Trainer, "other": Engine, "convert": Converter()},
    "tied": {"model": _tied, "other": lambda: Engine(tied=True), "convert": Converter()},
    "tied-and-not": {"model": _tied, "other": Engine, "convert": Converter()},
    "bfloat16": {"model": Trainer, "other": lambda: Engine().bfloat16(), "convert": Converter()},
    "from-bfloat16": {"model": lambda: Trainer().bfloat16(), "other": Engine, "convert": Converter()},
    "by-hand": {
        "model": Trainer,
        "other": Engine,
        "transfer": lambda model, other: other.load_state_dict(Converter()(model.state_dict())),
    },
    "another-module": {
        "model": Trainer,
        "other": Engine,
        "transfer": lambda model, other: _loaded(Converter()(model.state_dict())),
    },
}


def _loaded(state: dict[str, Any]) -> nn.Module:
    engine = Engine().to(next(iter(state.values())).dtype)
    engine.load_state_dict(state, assign=True)
    return engine


@pytest.mark.parametrize("arguments", HONEST.values(), ids=HONEST)
def test_a_correct_one_is_silent(arguments: dict[str, Any]) -> None:
    report = handover(inputs=tokens(), **arguments)
    assert report.passed
    assert report.traced == report.elements


def test_inputs_that_the_model_does_not_take_are_named() -> None:
    wrong = "the model does not run on inputs= in fp64: RuntimeError: mat1 and mat2 shapes cannot be multiplied"
    with pytest.raises(Unusable, match=f"^{wrong}"):
        handover(model=lambda: nn.Linear(4, 2), other=lambda: nn.Linear(4, 2), inputs=torch.ones(2, 5))


def test_an_error_of_a_converter_stays_what_it_is_and_has_no_line_of_ours() -> None:
    with pytest.raises(KeyError, match="no-such-name") as caught:
        handover(model=Trainer, other=Engine, inputs=tokens(), convert=lambda state: {"": state["no-such-name"]})
    shown = caught.traceback.filter(caught)
    assert [entry.frame.code.name for entry in shown][1:] == ["<lambda>"]
