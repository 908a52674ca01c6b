"""What a run file says of calls of parity: of green tests and of red ones, and what other versions make of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from everyrank.model.parity import NOTE, ParityFaultPart, ParityPart
from everyrank.model.result import RankResult, TestResult
from everyrank.reports.diff.diff import diff
from everyrank.reports.live.line import line
from everyrank.reports.page.build import page
from everyrank.reports.runfile import read as reading
from everyrank.reports.runfile.model import CaseLine

from tests.engines import torchrun
from tests.inner import Inner, Project
from tests.made_up_runs import case, header, run_of
from tests.run_files import RunFile, read

# -- without a process ----------------------------------------------------------------------------------------------


def _line(*notes: dict[str, Any]) -> CaseLine:
    """Return the line of a test whose ranks have noted this."""
    report = pytest.TestReport("test_x.py::test", ("test_x.py", 0, "test"), {}, "passed", None, "call")
    ranks = [RankResult(rank, "passed", notes=each) for rank, each in enumerate(notes)]
    return line([report], TestResult("passed", len(notes), "", ranks=ranks), {})


CALL = ParityPart(105, 105, ["fp64"], 2, 3)


def test_what_one_rank_has_noted_is_in_the_line() -> None:
    found = _line({NOTE: [msgspec.to_builtins(CALL)], f"{NOTE}-calls": 1}, {})
    assert (found.parity, found.parity_calls) == ([CALL], 1)


def test_a_test_without_a_call_has_none() -> None:
    assert (_line({}, {}).parity, _line({}).parity_calls) == ([], 0)


def _case(**changes: Any) -> CaseLine:
    return case(parity=[CALL], parity_calls=1, **changes)


def test_a_reader_of_a_version_without_parity_reads_the_line() -> None:
    class Older(msgspec.Struct, tag_field="line", tag="case"):
        id: str
        outcome: str

    written = _case()
    assert msgspec.json.decode(msgspec.json.encode(written), type=Older).id == written.id


def test_a_file_of_a_version_without_parity_is_read(tmp_path: Path) -> None:
    run = reading.read(run_of(header(), [case()]).write(tmp_path / "run.jsonl"))
    assert [each.parity for each in run.cases] == [[]]


def test_a_pattern_that_a_later_version_has_is_read(tmp_path: Path) -> None:
    fault = ParityFaultPart("gradient", "w", 1, "is odd", 0.5, 1e-8, "of-tomorrow")
    later = msgspec.structs.replace(CALL, faults=[fault])
    written = run_of(header(), [case(parity=[later], outcome="fail")])
    run = reading.read(written.write(tmp_path / "run.jsonl"))
    assert run.cases[0].parity[0].faults[0].pattern == "of-tomorrow"


def test_the_diff_of_two_runs_is_that_of_their_outcomes(tmp_path: Path) -> None:
    before, after = (
        reading.read(run_of(header(), [each]).write(tmp_path / name))
        for name, each in (
            ("old", _case()),
            ("new", _case(outcome="fail", message="parity: gradient of `w` is zero")),
        )
    )
    (change,) = diff(before, after).changes
    assert (change.kind, change.case.message) == ("regression", "parity: gradient of `w` is zero")


# -- with ranks -----------------------------------------------------------------------------------------------------

_TESTS = """
    import pytest, torch
    import torch.distributed as dist
    from everyrank.parity import parity
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)

        def forward(self, rows):
            return self.last(torch.tanh(self.first(rows)))

    def batch(step):
        generator = torch.Generator().manual_seed(step)
        return {"rows": torch.randn(8, 4, generator=generator), "labels": torch.arange(8) % 3}

    def loss(model, batch):
        return nn.functional.cross_entropy(model(batch["rows"]), batch["labels"])

    def forgets_to_reduce(model, optimizer, batch):
        mine = {name: value.chunk(2)[dist.get_rank()] for name, value in batch.items()}
        found = loss(model, mine)
        found.backward()
        optimizer.step()
        optimizer.zero_grad()
        return found

    def compare(**changed):
        arguments = dict(model=Net, parallelize=DistributedDataParallel, batch=batch, loss=loss, steps=2)
        return parity(**{**arguments, **changed})

    WORLD = pytest.mark.world(2)

    @WORLD
    def test_green(process_group):
        compare()

    @WORLD
    def test_red(process_group):
        compare(parallelize=lambda model: model, step=forgets_to_reduce)

    @WORLD
    def test_unusable(process_group):
        compare(batch=lambda step: {"rows": torch.ones(7, 4), "labels": torch.ones(7).long()})
"""


@pytest.fixture(scope="module")
def inner(module_project: Project) -> tuple[Inner, RunFile]:
    module_project.write("test_parity.py", _TESTS)
    found = module_project.run("--run-file=run.jsonl")
    return found, read(module_project.folder / "run.jsonl")


def test_a_green_test_has_what_was_compared_and_the_largest_errors(inner: tuple[Inner, RunFile]) -> None:
    (call,) = inner[1]["test_green"]["parity"]
    assert (call["compared"], call["tensors"], call["ranks"], call["steps"]) == (10, 10, 2, 2)
    assert "faults" not in call
    wide, own = call["passes"]
    assert (wide["dtype"], own["dtype"]) == ("fp64", "fp32")
    errors = {(row["kind"], row["tensor"]): row for row in wide["rows"]}
    gradient = errors["gradient", "last.weight"]
    assert max(gradient["errors"]) < 1e-12
    assert gradient["limits"] == [1e-8]
    assert len(gradient["errors"]) == 2


def test_a_red_test_has_the_first_tensor_its_pattern_and_its_ranks(inner: tuple[Inner, RunFile]) -> None:
    found = inner[1]["test_red"]
    (call,) = found["parity"]
    first = call["faults"][0]
    assert (first["kind"], first["tensor"], first["pattern"], first["ranks"]) == (
        "gradient", "last.bias", "not-reduced", [0, 1],
    )  # fmt: skip
    assert first["text"] in found["message"]
    states = {row["tensor"]: row.get("states") for row in call["passes"][0]["rows"] if row["kind"] == "gradient"}
    assert states["last.bias"] == ["first"]
    assert states["first.weight"] == ["same"]


def test_the_map_of_a_tensor_shows_which_rank_holds_what(inner: tuple[Inner, RunFile]) -> None:
    (call,) = inner[1]["test_green"]["parity"]
    weight, output = (call["maps"][call["mapped"][name]] for name in ("first.weight", "first"))
    assert weight["regions"] == [{"ranks": [0, 1], "box": [0, 6, 0, 4]}]
    assert output["regions"] == [{"ranks": [0], "box": [0, 4, 0, 6]}, {"ranks": [1], "box": [4, 8, 0, 6]}]


def test_a_call_that_could_not_compare_leaves_nothing(inner: tuple[Inner, RunFile]) -> None:
    found = inner[1]["test_unusable"]
    assert (found["outcome"], found.get("parity")) == ("fail", None)


def test_readers_and_the_page_take_the_file(inner: tuple[Inner, RunFile], module_project: Project) -> None:
    run = reading.read(module_project.folder / "run.jsonl")
    assert diff(run, run).changes == ()
    assert "not-reduced" in page([run])


@pytest.mark.group("clusters")
def test_the_record_comes_over_torchrun(project: Project) -> None:
    project.write("test_parity.py", _TESTS)
    torchrun(project, "--run-file=run.jsonl", "-k", "green").finish()
    (call,) = read(project.folder / "run.jsonl")["test_green"]["parity"]
    assert call["compared"] == 10


@pytest.mark.group("clusters")
def test_the_record_comes_from_clean_interpreters(project: Project) -> None:
    project.write("test_parity.py", _TESTS)
    project.run("--run-file=run.jsonl", "--launcher=spawn", "-k", "green")
    (call,) = read(project.folder / "run.jsonl")["test_green"]["parity"]
    assert call["compared"] == 10
