"""Failing optimizers fail on the chosen process and step, with the chosen error, and are SGD otherwise."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
import torch.distributed.rpc as rpc
from everyrank.fixtures.failing import (
    DiesOnStep,
    FailsAfterStep,
    FailsOnConstruction,
    FailsOnNthStep,
    FailsOnStep,
    InjectedError,
    UnloadableError,
    UnpicklableError,
    UnprintableError,
)

FAILING = [FailsOnConstruction, FailsOnStep, FailsOnNthStep, FailsAfterStep, DiesOnStep]


def _parameter() -> torch.nn.Parameter:
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    return parameter


def test_fails_on_construction() -> None:
    with pytest.raises(InjectedError, match="fails on purpose"):
        FailsOnConstruction([_parameter()])


def test_fails_on_every_step_and_writes_nothing() -> None:
    parameter = _parameter()
    optimizer = FailsOnStep([parameter], lr=0.5)
    for _ in range(2):
        with pytest.raises(InjectedError):
            optimizer.step()
    assert parameter.tolist() == [1, 1]


def test_fails_on_the_nth_step_only() -> None:
    parameter = _parameter()
    optimizer = FailsOnNthStep([parameter], lr=0.25, n=2)
    optimizer.step()
    with pytest.raises(InjectedError):
        optimizer.step()
    assert parameter.tolist() == [0.75, 0.75]
    optimizer.step()
    assert parameter.tolist() == [0.5, 0.5]


def test_fails_after_having_written() -> None:
    parameter = _parameter()
    with pytest.raises(InjectedError):
        FailsAfterStep([parameter], lr=0.25).step()
    assert parameter.tolist() == [0.75, 0.75]


def test_the_type_and_the_message_are_the_callers() -> None:
    with pytest.raises(KeyError, match="gone"):
        FailsOnStep([_parameter()], error=KeyError, message="gone").step()


def test_the_arguments_of_sgd_are_taken() -> None:
    optimizer = FailsOnNthStep([_parameter()], 0.5, n=9, momentum=0.9, weight_decay=0.1)
    assert optimizer.param_groups[0]["momentum"] == 0.9


@pytest.mark.parametrize("cls", FAILING)
def test_the_classes_travel(cls: type[torch.optim.Optimizer]) -> None:
    assert pickle.loads(pickle.dumps(cls)) is cls


def test_an_unpicklable_error_cannot_be_pickled() -> None:
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(UnpicklableError("x"))


def test_an_unloadable_error_pickles_and_cannot_be_unpickled() -> None:
    text = pickle.dumps(UnloadableError("x"))
    with pytest.raises(TypeError, match="it said: x"):
        pickle.loads(text)


@pytest.mark.parametrize("text", [str, repr])
def test_an_unprintable_error_breaks_its_reader(text: Any) -> None:
    with pytest.raises(ValueError, match="no text"):
        text(UnprintableError("x"))


@pytest.mark.parametrize(("only", "message"), [(0, "neither a process group nor"), ("worker0", "no RPC agent")])
def test_failing_on_one_process_needs_to_know_which_this_is(only: int | str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FailsOnStep([_parameter()], only=only).step()


@pytest.mark.world(3)
def test_fails_on_one_rank_only(process_group: Any, world: Any) -> None:
    optimizer = FailsOnStep([_parameter()], only=1)
    if world.rank == 1:
        with pytest.raises(InjectedError):
            optimizer.step()
    else:
        optimizer.step()


def _step_here(only: int | str | None) -> str:
    try:
        FailsOnStep([_parameter()], only=only).step()
    except InjectedError:
        return "failed"
    return "stepped"


@pytest.mark.world(3)
def test_fails_on_one_worker_only_by_its_name_or_its_id(rpc_agent: Any, world: Any) -> None:
    if world.rank:
        return
    for only in ("worker1", 1):
        outcomes = [rpc.rpc_sync(f"worker{rank}", _step_here, (only,)) for rank in range(3)]
        assert outcomes == ["stepped", "failed", "stepped"]
