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
LOSSES = {
    "lightly": "lightly",
    "open-clip-torch": "open_clip",
    "pytorch-metric-learning": "pytorch_metric_learning",
    "sentence-transformers": "sentence_transformers",
    "vector-quantize-pytorch": "vector_quantize_pytorch",
}
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
    "bitsandbytes": "bitsandbytes",
    "deepspeed": "deepspeed",
    "fairscale": "fairscale",
    "heavyball": "heavyball",
    "lightning-fabric": "lightning_fabric",
    "muon-optimizer": "muon",
    "muon-fsdp2": "muon_fsdp2",
    "pytorch-optimizer": "pytorch_optimizer",
    "schedulefree": "schedulefree",
    "torchao": "torchao",
    "torchft-nightly": "torchft",
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
    assert _pinned(BOARDS / "losses" / "packages.txt") == _named("losses") == LOSSES.keys()


def _pinned(path: Path) -> set[str]:
    return {line.partition("==")[0] for line in path.read_text().splitlines() if not line.startswith("#")}


def _named(board: str) -> set[str]:
    texts = "".join(path.read_text() for path in (BOARDS / board).glob("test_*.py"))
    return set(re.findall(r"pip install ([\w-]+)", texts))


@pytest.mark.parametrize(("name", "modules"), [("models", MODELS), ("losses", LOSSES)])
def test_a_row_names_the_package_that_it_lacks(name: str, modules: dict[str, str], project: Project) -> None:
    for path in [*(BOARDS / name).glob("*.py"), *(BOARDS / name / "ledgers").glob("*.toml")]:
        project.write(str(path.relative_to(BOARDS)), path.read_text())
    inner = project.run("--collect-only", "-q", "-rs", name)
    missing = [package for package, module in modules.items() if find_spec(module) is None]
    assert re.findall(r"pip install ([\w-]+)", inner.out) == missing, inner.out
    assert len([*(BOARDS / name).glob("test_*.py")]) == len(modules)


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
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
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
        dist.all_reduce(parameter.grad.to_local())

    def cut(model):
        mesh = init_device_mesh("cpu", (2,))
        parallelize_module(model, mesh, {"up": ColwiseParallel(), "head": RowwiseParallel()})
        # Both ranks have the bias, and half of its gradient; what is accumulated is summed again.
        model.head.bias.register_hook(lambda gradient: gradient / 2)
        model.head.bias.register_post_accumulate_grad_hook(again)
        return model

    def whole(model):
        # A plan that names no module of the model, but hooks it.
        model.register_forward_hook(lambda module, given, made: None)
        return model

    def staged(model):
        model.number = 1 if dist.get_rank() else 0
        model.up = None if model.number else model.up
        model.head = model.head if model.number else None
        return model

    def step(model, optimizer, batch, microbatches):
        losses = []
        for rows, labels in zip(batch["rows"].chunk(microbatches), batch["labels"].chunk(microbatches)):
            if model.number:
                hidden = torch.empty(len(rows), 8, dtype=rows.dtype)
                dist.recv(hidden, 0)
                losses.append(nn.functional.cross_entropy(model.head(hidden.requires_grad_()), labels) / microbatches)
                losses[-1].backward()
                dist.send(hidden.grad, 0)
            else:
                hidden = torch.tanh(model.up(rows))
                dist.send(hidden.detach(), 1)
                gradient = torch.empty_like(hidden)
                dist.recv(gradient, 1)
                hidden.backward(gradient)
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack(losses).sum().detach() if losses else None

    def build(mode, folder):
        assert folder.is_dir()
        if mode == "experts":
            raise NotImplementedError("it has no experts")
        if mode == "fsdp2-experts":
            raise KeyError("its plan")
        common = {"model": Net, "batch": batch, "loss": loss}
        if mode in ("fsdp2", "sequence"):
            return {**common, "parallelize": fully_shard, "split": "rows"}
        if mode == "pipeline":
            return {**common, "parallelize": staged, "step": step}
        return {**common, "parallelize": cut, "split": "none"}

    def build_whole(mode, folder):
        return {"model": Net, "batch": batch, "loss": loss, "parallelize": whole, "split": "none"}

    @conformance(Subject("net", CONTRACT, build, package="pytest"), Subject("whole", CONTRACT, build_whole))
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
    assert _ends(nets, "net") == {
        "tensor[two-microbatches-ws2]]": "failed",
        "tensor[one-microbatch-ws2]]": "passed",
        "fsdp2[two-microbatches-ws2]]": "passed",
        "fsdp2[one-microbatch-ws2]]": "passed",
        "experts[two-microbatches-ws2]]": "skipped",
        "experts[one-microbatch-ws2]]": "skipped",
        "fsdp2-experts[two-microbatches-ws4]]": "failed",
        "fsdp2-experts[one-microbatch-ws4]]": "failed",
        "pipeline[two-microbatches-ws2]]": "passed",
        "pipeline[one-microbatch-ws2]]": "passed",
        "sequence[two-microbatches-ws2]]": "failed",
        "sequence[one-microbatch-ws2]]": "failed",
    }
    assert {*_ends(nets, "whole").values()} == {"failed"}


def _ends(nets: Inner, subject: str) -> dict[str, str]:
    cases = [(*name.partition("/models/"), end) for name, end in nets.outcomes().items()]
    return {case: end for before, _, case, end in cases if before.endswith(f"[{subject}")}


def test_a_case_in_which_nothing_is_parallel_is_red(nets: Inner, module_project: Project) -> None:
    cases = [case for case in read(module_project.folder / "run.jsonl").cases if case.outcome == "fail"]
    whole = [case for case in cases if case.subject == "whole"]
    idle = [case for case in cases if case.case.startswith("models/sequence[")]
    # Parity finds nothing in these: the model trains as the plain one, on each rank by itself.
    assert not any(found.faults for case in [*whole, *idle] for found in case.parity)
    lacking = {(case.subject, case.case.partition("[")[0]): case.message for case in [*whole, *idle]}
    nothing = "nothing is parallel: each rank has all"
    assert lacking.pop(("whole", "models/sequence")) == lacking.pop(("net", "models/sequence")) == f"{nothing} tokens"
    assert {*lacking.values()} == {f"{nothing} weights"}


def test_the_board_of_models_has_what_parity_found_and_what_a_model_refuses(
    nets: Inner, module_project: Project
) -> None:
    cases = {case.case: case for case in read(module_project.folder / "run.jsonl").cases if case.subject == "net"}
    twice = cases["models/tensor[two-microbatches-ws2]"]
    assert (twice.outcome, twice.parity[0].faults[0].pattern) == ("fail", "reduced-twice")
    assert twice.message.startswith("parity: gradient of `")
    assert cases["models/fsdp2[two-microbatches-ws2]"].parity[0].compared
    assert "it has no experts" in cases["models/experts[two-microbatches-ws2]"].message
    assert "fsdp2-experts raised KeyError: 'its plan'" in cases["models/fsdp2-experts[one-microbatch-ws4]"].message
    (table,) = board([read(module_project.folder / "run.jsonl")])
    assert table.groups == ("tensor", "fsdp2", "experts", "fsdp2-experts", "pipeline", "sequence")
    row = table.rows[0]
    assert (row.subject, row.package) == ("net", f"pytest {version('pytest')}")
    assert (row.cells["tensor"].holds, row.cells["tensor"].asked) == (1, 2)
