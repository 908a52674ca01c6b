"""The contract ``trainer``: its reference, the wrong states that it makes, and the examples of its document."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
from everyrank.fixtures.failing import InjectedError
from everyrank.fixtures.optimizers import rows
from everyrank.suites.compare.reference import Plan
from everyrank.suites.trainer.as_torch import numbered, reloaded, takes
from everyrank.suites.trainer.batches import Failing, Microbatch
from everyrank.suites.trainer.model import Step
from everyrank.suites.trainer.model_alone import ModelAlone, Stored
from everyrank.suites.trainer.parameters import digests, reordered
from everyrank.suites.trainer.planned import planned
from everyrank.suites.trainer.subjects.pipelines import owners, stages
from everyrank.suites.trainer.wrong_states import Mutation, Part, mutate, overwrite

from tests.documents import as_program, blocks
from tests.inner import Inner, Project


def alone(plan: Plan, steps: int) -> ModelAlone:
    """Return the reference after the first steps of a plan."""
    found = ModelAlone(planned(plan))
    for number in range(1, steps + 1):
        found.step(Step(plan.parts), number, 0, plan.size)
    return found


@pytest.mark.parametrize(
    "plan",
    [
        Plan(1),
        Plan(3, steps=4),
        Plan(3, parts=3),
        Plan(2, optimizer="LBFGS", variant="defaults"),
        Plan(2, variant="groups"),
        Plan(3, model="optional", skips=frozenset({0})),
        Plan(2, model="sparse-sum", variant="lr"),
        Plan(2, model="frozen", thaw=2),
    ],
    ids=str,
)
def test_the_two_references_agree_bit_for_bit(plan: Plan) -> None:
    stored = Stored(plan)
    for number in range(plan.steps + 1):
        for name, value in alone(plan, number).values.items():
            assert torch.equal(value, stored.values[name]), (number, name)
        stored.step()


@pytest.mark.parametrize(
    ("wrapped", "expected"),
    [
        (lambda state: state, True),
        (lambda state: {"model": {}, "optimizer": state}, True),
        (lambda state: ({}, [state]), True),
        (lambda state: {**state, "param_groups": [{"params": ["first.weight"]}]}, False),
        (lambda state: {"optimizer": {"first.weight": state["state"][0]}}, False),
        (lambda state: b"bytes", False),
    ],
)
def test_a_state_in_the_form_of_torch_optim_numbers_the_parameters(wrapped: Any, expected: bool) -> None:
    assert numbered(wrapped(alone(Plan(1, variant="momentum"), 1).optimizer.state_dict())) == expected


@pytest.mark.parametrize("mutation", ["missing", "extra", "misshapen", "transposed"])
def test_torch_optim_loads_each_wrong_entry_of_an_optimizer(mutation: Mutation) -> None:
    assert takes(alone(Plan(1, variant="momentum"), 1), mutation)


def test_two_optimizers_have_states_of_other_dtypes_after_saving_and_loading() -> None:
    rows_of_plain = [row for row in rows() if not row.needs & {"closure", "sparse"}]
    plans = [Plan(1, model=row.model, optimizer=row.name, variant=row.fullest.name) for row in rows_of_plain]
    assert [plan.optimizer for plan in plans if reloaded(alone(plan, 1)) is not None] == ["ASGD", "NAdam"]


@pytest.mark.parametrize("name", ["equal-shapes", "plain"])
def test_a_reordered_model_is_the_same_function_of_the_same_names(name: str) -> None:
    plan = Plan(1, model=name)
    model, other = plan.build(), reordered(plan.build())
    names = [name for name, _ in model.named_parameters()]
    assert sorted(names) == sorted(name for name, _ in other.named_parameters())
    assert names != [name for name, _ in other.named_parameters()]
    inputs = plan.batch(0, 1).inputs
    assert torch.equal(model(inputs), other(inputs))


def test_the_losses_of_the_rows_add_up_to_that_of_the_batch() -> None:
    plan = Plan(1, parts=2)
    model = plan.build()
    for batch in planned(plan).batches(model, Step(parts=2), 1, 0, 0):
        rows = batch.rows()
        assert len(rows) == len(batch.inputs) > 1
        total = torch.stack([row.loss(model) for row in rows]).sum()
        torch.testing.assert_close(total, batch.loss(model))


def test_a_row_of_a_failing_batch_fails_and_is_noted() -> None:
    batch = Microbatch(*Plan(1).batch(0, 1))
    failing = Failing(batch.inputs, batch.targets)
    assert not failing.asked
    with pytest.raises(InjectedError):
        failing.rows()[0].criterion(batch.targets[:1])
    assert len(failing.asked) == 1


@pytest.mark.parametrize("name", ["tied", "optional", "scalars", "mixed-dtypes"])
def test_a_model_that_is_no_chain_is_refused_by_the_pipeline(name: str) -> None:
    with pytest.raises(NotImplementedError, match="no chain"):
        owners(Plan(2, model=name).build(), stages(Plan(2, model=name).build(), 2))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_stages_of_a_model_are_the_model(count: int) -> None:
    plan = Plan(1, model="equal-shapes")
    model = plan.build()
    cut = stages(model, count)
    assert len(set(owners(model, cut).values())) == count
    inputs = plan.batch(0, 1).inputs
    assert torch.equal(functools.reduce(lambda x, stage: stage(x), cut, inputs), model(inputs))


def test_values_have_equal_digests_whatever_their_layout_is() -> None:
    gaps = torch.arange(6.0)[::2]
    assert digests({"p": gaps}) == digests({"p": gaps.clone()})
    assert digests({"p": gaps[:1]}) == digests({"p": torch.zeros(1)}) != digests({"p": -torch.zeros(1)})
    assert digests({"p": torch.empty(0, 3)}) == digests({"p": torch.empty(3, 0)})


def _state() -> dict[str, Any]:
    plan = Plan(1, variant="momentum")
    trained = alone(plan, 1)
    return {"model": trained.model.state_dict(), "nested": {"optimizer": trained.optimizer.state_dict()}}


@pytest.mark.parametrize(
    ("part", "mutation"),
    [
        *((part, mutation) for part in ("model", "optimizer") for mutation in ("missing", "extra", "misshapen")),
        ("optimizer", "transposed"),
    ],
)
def test_one_entry_of_a_state_is_made_wrong(part: Part, mutation: Mutation) -> None:
    right = _state()
    wrong = copy.deepcopy(right)
    mutate(wrong, part, mutation, count=4)
    chosen, other = ("model", "nested") if part == "model" else ("nested", "model")
    assert str(wrong[other]) == str(right[other])
    before, after = (
        state["model"] if part == "model" else state["nested"]["optimizer"]["state"] for state in (right, wrong)
    )
    assert len(after) - len(before) == {"missing": -1, "extra": 1}.get(mutation, 0)
    assert str(wrong[chosen]) != str(right[chosen])


def test_an_entry_without_elements_is_made_wrong() -> None:
    state = {"model": {"a.weight": torch.zeros(0)}}
    mutate(state, "model", "misshapen", count=1)
    assert state["model"]["a.weight"].shape != (0,)


@pytest.mark.parametrize("names", [("weight", "bias"), ("other", "bias")], ids=["its", "others"])
def test_parameters_and_buffers_alone_are_overwritten_in_a_state(names: tuple[str, str]) -> None:
    kept = {number: {"momentum_buffer": torch.zeros(1)} for number in range(2)}
    model = {"weight": torch.zeros(2), "bias": torch.zeros(1), "buffer": torch.zeros(())}
    assert overwrite({"optimizer": {"state": kept}, "model": model}, names) == (names[0] == "weight")
    assert all(value.all() == (names[0] == "weight") for value in model.values())
    assert not any(entry["momentum_buffer"].any() for entry in kept.values())


#: The document's engine has no test of its own.
ENGINE = """
from everyrank.suites import Subject, conformance

SUBJECT = Subject("of the document", contract="trainer", build=EngineTrainer, sizes=(2,))


@conformance(SUBJECT)
def test_engine(case):
    case.run()
"""

#: The engine keeps the laws that need nothing but a step and the parameters; the whole files keep all, as declared.
TRIED = (
    "test_ddp or test_sharded or (test_engine and (trainer/mean or trainer/late)) or (test_scheduled and WarmUpSGD)"
)


@pytest.fixture(scope="module")
def inner(module_project: Project) -> Inner:
    for build, more in (("Ddp", ""), ("Sharded", ""), ("Scheduled", ""), ("EngineTrainer", ENGINE)):
        (program,) = [block.text for block in blocks("docs/trainer.md") if f"class {build}:" in block.text]
        module_project.write(f"test_{build.lower()}.py", as_program(program + more))
    return module_project.run("--profile=quick", "-k", TRIED)


@pytest.mark.parametrize(
    ("test", "count"), [("test_ddp", 20), ("test_sharded", 20), ("test_engine", 2), ("test_scheduled", 1)]
)
def test_the_examples_train(inner: Inner, test: str, count: int) -> None:
    mine = {nodeid: case for nodeid, case in inner.tests.items() if f"::{test}[" in nodeid}
    assert len(mine) >= count
    red = {nodeid: case.text for nodeid, case in mine.items() if case.outcome in ("failed", "error")}
    assert red == {}


def test_the_example_of_a_sharded_trainer_builds_on_torchs_ledger(inner: Inner) -> None:
    outcomes = [case.properties["outcome"] for nodeid, case in inner.tests.items() if "::test_sharded[" in nodeid]
    assert {"known", "unsupported"} <= set(outcomes)
    assert "not-run" not in outcomes
