"""What cases need alike is done once: references, the plainest use of a size, the first step of a training."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from everyrank.rank import context
from everyrank.suites.compare.reference import Plan, order_matched
from everyrank.suites.compare.stored import MOST_BYTES, stored
from everyrank.suites.compare.trajectory import Step, Trajectory, from_bytes, to_bytes
from everyrank.suites.engine.contract import contract
from everyrank.suites.moves.first import claimed
from everyrank.suites.replicate.points import TrainingPoint

from tests.inner import Project

_MODELS = sorted(
    {point.plan.model for _, point in contract("replicate").points() if isinstance(point, TrainingPoint)}
)


@pytest.mark.parametrize("model", _MODELS)
def test_a_run_reads_back_bit_for_bit(model: str) -> None:
    """This holds for all models: with sparse, complex, empty and other tensors, and with gradients that are None."""
    run = order_matched(Plan(2, steps=2, model=model, optimizer="SGD", variant="lr"))
    again = from_bytes(to_bytes(run))
    _same(again.start, run.start)
    for ours, other in zip(again.steps, run.steps, strict=True):
        _same(ours.gradients, other.gradients)
        _same(ours.values, other.values)
        _same(ours.buffers, other.buffers)


def _same(ours: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert list(ours) == list(other)
    for name, value in other.items():
        if value is None:
            assert ours[name] is None
            continue
        found = ours[name]
        assert (found.dtype, found.shape, found.layout) == (value.dtype, value.shape, value.layout)
        for mine, expected in zip(_parts(found), _parts(value), strict=True):
            assert torch.equal(mine, expected)


def _parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    return [tensor.indices(), tensor.values()] if tensor.is_sparse else [tensor]


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make this process a rank of a run, as far as a reference can see; return the run's folder."""
    monkeypatch.setattr(context, "_current", [SimpleNamespace(run_folder=str(tmp_path))])
    return tmp_path


@pytest.mark.parametrize(("numbers", "computed"), [(2, 1), (MOST_BYTES // 8 + 1, 2)])
def test_a_run_is_computed_by_one_process_only_unless_it_is_large(rank: Path, numbers: int, computed: int) -> None:
    plans: list[Plan] = []

    def compute(plan: Plan) -> Trajectory:
        plans.append(plan)
        values = {"weight": torch.arange(numbers, dtype=torch.float64) + plan.size}
        return Trajectory(values, [Step({}, {}, {})])

    runs = [stored(compute)(Plan(3)) for _ in range(2)]  # each has the memory of a process of its own
    assert plans == [Plan(3)] * computed
    assert torch.equal(runs[0].start["weight"], runs[1].start["weight"])
    assert stored(compute)(Plan(2)).start["weight"][0] == 2.0, "another plan has another run"
    assert len(plans) == computed + 1


def test_a_run_that_raises_is_computed_again(rank: Path) -> None:
    def fails(plan: Plan) -> Trajectory:
        raise ZeroDivisionError

    def compute(plan: Plan) -> Trajectory:
        return Trajectory({})

    compute.__name__ = fails.__name__
    with pytest.raises(ZeroDivisionError):
        stored(fails)(Plan(2))
    assert stored(compute)(Plan(2)).steps == []


_COUNTED = """
    import os
    import torch.distributed as dist
    from everyrank.suites import Subject, conformance

    def does_nothing(module, **options):
        with open(os.environ["INNER_BUILT"], "a") as built:
            built.write(f"{dist.get_world_size()}")
        return module

    @conformance(Subject("does-nothing", contract="replicate", build=does_nothing, sizes=(2, 3)))
    def test_it(case): case.run()
"""


def test_the_plainest_use_is_tried_once_for_each_size(
    module_project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of these four cases fails, and the next has new processes: the plainest use is not tried there again."""
    built = tmp_path / "built"
    monkeypatch.setenv("INNER_BUILT", str(built))
    module_project.write("test_counted.py", _COUNTED)
    outcomes = module_project.run("-W", "ignore", "--profile=full", "-k", "stays or thawed").outcomes()
    assert list(outcomes.values()) == ["failed"] * 4
    counted = built.read_text()
    assert counted.count("2") == 2 * (2 + 1), "on each of two ranks: in two cases, and before the first"
    assert counted.count("3") == 3 * (2 + 1)


_TRAINED = """
    import os
    from everyrank.fixtures.exemplars.parameter_server import BatchUpdateParameterServer
    from everyrank.suites import Subject, conformance

    class Trained(BatchUpdateParameterServer):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            with open(os.environ["INNER_BUILT"], "a") as built:
                built.write("b")

        def mean(self, parts):
            self.means = getattr(self, "means", 0) + 1
            round = "first round" if self.means <= len(self.parameters) else "second round"
            return super().mean(parts) * (2 if os.environ["INNER_WRONG"] == round else 1)

    @conformance(Subject("trained", contract="parameter-server", build=Trained))
    def test_it(case): case.run()
"""

_FIRST, _LONGER = "parity.round[SGD-momentum-n3-ws1]", "parity.rounds[SGD-momentum-n3-ws1]"


@pytest.mark.parametrize(
    ("wrong", "laws", "failing", "trainings"),
    [
        ("", "parity.round*", [], 1),
        ("", "parity.round", [], 1),  # without the longer training, as in a line that repeats the case
        ("first round", "parity.round*", [_FIRST, _LONGER], 2),
        ("second round", "parity.round*", [_LONGER], 2),
    ],
)
def test_a_first_step_is_trained_again_only_if_the_longer_training_fails(
    module_project: Project,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    wrong: str,
    laws: str,
    failing: list[str],
    trainings: int,
) -> None:
    built = tmp_path / "built"
    monkeypatch.setenv("INNER_BUILT", str(built))
    monkeypatch.setenv("INNER_WRONG", wrong)
    module_project.write("test_trained.py", _TRAINED)
    outcomes = module_project.run("-W", "ignore", "--law", laws, "-k", "SGD-momentum-n3-ws1").outcomes()
    ends = {test.partition("/")[2].removesuffix("]"): outcome for test, outcome in outcomes.items()}
    cases = [_FIRST, _LONGER] if laws.endswith("*") else [_FIRST]
    assert ends == {case: "failed" if case in failing else "passed" for case in cases}
    assert built.read_text() == "b" * (1 + trainings), "the plainest use, before the first case, builds one too"


def test_the_first_red_case_of_a_run_is_the_first_when_it_runs_again_and_each_is_without_a_folder(
    tmp_path: Path,
) -> None:
    file = str(tmp_path / "first-red")
    assert [claimed(file, test) for test in ("a", "b", "a")] == ["a", "a", "a"]
    gone = str(tmp_path / "gone" / "first-red")
    assert [claimed(gone, test) for test in ("a", "b")] == ["a", "b"]


def test_no_garbage_collection_looks_at_the_cases(project: Project) -> None:
    project.write(
        "conftest.py",
        """
        import gc
        from everyrank.suites.engine.case import Case

        def pytest_collection_finish(session):
            cases = [item.callspec.params["case"] for item in session.items]
            assert cases and not any(isinstance(found, (Case, type(session.items[0]))) for found in gc.get_objects())
        """,
    )
    project.write("test_trained.py", _TRAINED)
    outcomes = project.run("--law", "parity.round", "-k", "SGD-momentum-n3-ws1", "--collect-only")
    assert outcomes.code == 0, outcomes.out
