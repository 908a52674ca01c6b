"""The boards of this repository: what they lack is named, and a subject's package is in the run file."""

from __future__ import annotations

import re
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
from everyrank.reports.board.board import board
from everyrank.reports.runfile.read import read

from tests.inner import Inner, Project

BOARDS = Path(__file__).parents[2] / "boards"
MODELS = {
    "deepspeed": "deepspeed",
    "ibm-fms": "fms",
    "megatron-core": "megatron",
    "ring-attention-pytorch": "ring_attention_pytorch",
    "torchtitan": "torchtitan",
    "transformers": "transformers",
    "x-transformers": "x_transformers",
}
MODULES = {
    "accelerate": "accelerate",
    "fairscale": "fairscale",
    "lightning-fabric": "lightning_fabric",
    "muon-optimizer": "muon",
    "muon-fsdp2": "muon_fsdp2",
    "pytorch-optimizer": "pytorch_optimizer",
    "schedulefree": "schedulefree",
}


def test_a_board_has_its_cases_or_names_the_package_that_it_lacks(project: Project) -> None:
    files = sorted((BOARDS / "trainers").iterdir())
    for path in files:
        if path.is_file():
            project.write(path.name, path.read_text())
    names = [path.name for path in files if path.name.startswith("test_")]
    inner = project.run("--collect-only", "-q", "-rs", *names)
    missing = [package for package, module in MODULES.items() if find_spec(module) is None]
    assert re.findall(r"pip install ([\w-]+)", inner.out) == missing, inner.out
    assert len(names) == len(MODULES)


def test_every_package_of_a_board_is_pinned() -> None:
    assert _pinned(BOARDS / "packages.txt") == _named("trainers") == MODULES.keys()
    # The others are what some of these need beside themselves.
    assert _pinned(BOARDS / "models" / "packages.txt") - {"accelerate"} == _named("models")


def _pinned(path: Path) -> set[str]:
    return {line.partition("==")[0] for line in path.read_text().splitlines() if not line.startswith("#")}


def _named(board: str) -> set[str]:
    texts = "".join(path.read_text() for path in (BOARDS / board).glob("test_*.py"))
    return set(re.findall(r"pip install ([\w-]+)", texts))


def test_a_row_of_models_names_the_package_that_it_lacks(project: Project) -> None:
    for path in [*(BOARDS / "models").glob("*.py"), *(BOARDS / "models" / "ledgers").glob("*.toml")]:
        project.write(str(path.relative_to(BOARDS)), path.read_text())
    inner = project.run("--collect-only", "-q", "-rs", "models")
    missing = [package for package, module in MODELS.items() if find_spec(module) is None]
    assert re.findall(r"pip install ([\w-]+)", inner.out) == missing, inner.out
    assert len([*(BOARDS / "models").glob("test_*.py")]) == len(MODELS)


def test_a_run_file_has_the_version_of_a_subjects_package(project: Project) -> None:
    project.write(
        "test_mine.py",
        """
        from everyrank.suites import Subject, conformance
        from everyrank.suites.trainer.subjects.ddp import Ddp

        MINE = Subject("mine", contract="trainer", build=Ddp, package="pytest-xdist")
        GONE = Subject("gone", contract="trainer", build=Ddp, package="no-such-package")

        @conformance(MINE, GONE)
        def test_mine(case):
            case.run()
        """,
    )
    project.run("test_mine.py", "--law", "loss", "--profile=quick", "--run-file", "run.jsonl")
    found = read(project.folder / "run.jsonl").header.packages
    assert found == {"mine": f"pytest-xdist {version('pytest-xdist')}", "gone": "no-such-package"}


_MODELS = """
    import pytest
    import torch
    import torch.distributed as dist
    from everyrank.suites import Subject, conformance
    from torch import nn
    from torch.distributed.fsdp import fully_shard
    from models.contract import CONTRACT

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.up, self.head = nn.Linear(6, 8), nn.Linear(8, 4)

        def forward(self, rows):
            return self.head(torch.tanh(self.up(rows)))

    def batch(step):
        generator = torch.Generator().manual_seed(step)
        return {"rows": torch.randn(8, 6, generator=generator), "labels": torch.arange(8) % 4}

    def loss(model, batch):
        return nn.functional.cross_entropy(model(batch["rows"]), batch["labels"])

    def again(parameter):
        dist.all_reduce(parameter.grad)

    def summed(model):
        # Each rank has the whole batch and half of the loss; what is accumulated is summed again.
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: gradient / 2)
            parameter.register_post_accumulate_grad_hook(again)
        return model

    def build(mode, folder):
        assert folder.is_dir()
        if mode == "experts":
            raise NotImplementedError("it has no experts")
        if mode == "fsdp2-experts":
            raise KeyError("its plan")
        common = {"model": Net, "batch": batch, "loss": loss}
        if mode == "fsdp2":
            return {**common, "parallelize": fully_shard, "split": "rows"}
        return {**common, "parallelize": summed, "split": "none"}

    @conformance(Subject("net", CONTRACT, build, package="pytest"))
    def test_nets(case):
        case.run()
"""


@pytest.fixture(scope="module")
def nets(module_project: Project) -> Inner:
    """Return a run of the contract of models, on a model that needs no package."""
    for name in ("__init__.py", "contract.py"):
        module_project.write(f"models/{name}", (BOARDS / "models" / name).read_text())
    module_project.write("test_nets.py", _MODELS)
    return module_project.run("test_nets.py", "--run-file", "run.jsonl")


def test_a_case_of_the_board_of_models_is_a_mode_and_a_number_of_microbatches(nets: Inner) -> None:
    found = {name.partition("models/")[2]: end for name, end in nets.outcomes().items()}
    assert found == {
        "tensor[two-microbatches-ws2]]": "failed",
        "tensor[one-microbatch-ws2]]": "passed",
        "fsdp2[two-microbatches-ws2]]": "passed",
        "fsdp2[one-microbatch-ws2]]": "passed",
        "experts[two-microbatches-ws2]]": "skipped",
        "experts[one-microbatch-ws2]]": "skipped",
        "fsdp2-experts[two-microbatches-ws4]]": "failed",
        "fsdp2-experts[one-microbatch-ws4]]": "failed",
    }


def test_the_board_of_models_has_what_parity_found_and_what_a_model_refuses(
    nets: Inner, module_project: Project
) -> None:
    cases = {case.case: case for case in read(module_project.folder / "run.jsonl").cases}
    twice = cases["models/tensor[two-microbatches-ws2]"]
    assert (twice.outcome, twice.parity[0].faults[0].pattern) == ("fail", "reduced-twice")
    assert twice.message.startswith("parity: gradient of `")
    assert cases["models/fsdp2[two-microbatches-ws2]"].parity[0].compared
    assert "it has no experts" in cases["models/experts[two-microbatches-ws2]"].message
    assert "fsdp2-experts raised KeyError: 'its plan'" in cases["models/fsdp2-experts[one-microbatch-ws4]"].message
    (table,) = board([read(module_project.folder / "run.jsonl")])
    assert table.groups == ("tensor", "fsdp2", "experts", "fsdp2-experts")
    (row,) = table.rows
    assert (row.subject, row.package) == ("net", f"pytest {version('pytest')}")
    assert (row.cells["tensor"].holds, row.cells["tensor"].asked) == (1, 2)
