"""The harness works without numpy, and names numpy if torch needs it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from everyrank.rank.world import digest

from tests.engines import one_run
from tests.inner import Inner, Project

ROOT = Path(__file__).parents[2]

#: Before anything is imported in any process of the inner run.
NO_NUMPY = "import sys; sys.modules['numpy'] = None"

NUMPY = "torch starts no RPC agent without numpy: install numpy beside torch"

SOURCE = """
    import importlib.util
    import pytest, torch
    import torch.distributed as dist

    def test_numpy_is_not_there():
        assert importlib.util.find_spec("numpy") is None

    @pytest.mark.world(2)
    def test_tensors_agree(process_group, world):
        total = torch.full((3,), world.rank + 1.0)
        dist.all_reduce(total)
        world.all_agree({"total": total, "half": total.bfloat16()})

    @pytest.mark.world(2)
    def test_tensors_do_not_agree(world):
        world.all_agree(torch.tensor([0.0, world.rank]))

    def test_agent(rpc_agent):
        pass

    def test_warm_agent(warm_rpc_agent):
        pass
"""

SUBJECT = """
    from everyrank.fixtures.exemplars.rpc_optimizer import RpcOptimizer
    from everyrank.suites import Subject, conformance

    @conformance(Subject("mine", contract="rpc-optimizer", build=RpcOptimizer))
    def test_mine(case):
        case.run()
"""


inner = one_run(
    {"sitecustomize.py": NO_NUMPY, "test_inner.py": SOURCE, "test_subject.py": SUBJECT}, "--law", "context.*"
)


@pytest.mark.parametrize("test", ["test_numpy_is_not_there", "test_tensors_agree"])
def test_a_test_without_an_agent_passes(inner: Inner, test: str) -> None:
    assert inner[test].outcome == "passed", inner[test].text


def test_ranks_that_disagree_are_named(inner: Inner) -> None:
    text = inner["test_tensors_do_not_agree"].text
    assert "rank 0: tensor([0., 0.])" in text
    assert "rank 1: tensor([0., 1.])" in text


@pytest.mark.parametrize("test", ["test_agent", "test_warm_agent"])
def test_an_agent_fails_in_one_sentence_that_names_numpy(inner: Inner, test: str) -> None:
    message, _, _ = inner[test].text.partition("\n---")
    assert message == f"on ranks 0,1\n{NUMPY}"


def test_a_subject_that_needs_an_agent_names_numpy_once(inner: Inner) -> None:
    cases = [test for nodeid, test in inner.tests.items() if nodeid.startswith("test_subject.py")]
    assert len(cases) > 2
    assert sorted(case.outcome for case in cases) == ["error", *["skipped"] * (len(cases) - 1)], inner.out
    assert sum(case.text.count(NUMPY) for case in cases) == 1, inner.out


def test_the_readmes_install_has_the_packages_for_the_examples() -> None:
    """The README's install command includes numpy; the package alone does not require it."""
    readme = (ROOT / "README.md").read_text()
    assert "    pip install path/to/everyrank numpy\n" in readme


@pytest.mark.group("packages")
def test_the_examples_that_open_no_agent_pass_without_it(project: Project) -> None:
    shutil.copytree(ROOT / "examples/my_project", project.folder, dirs_exist_ok=True)
    project.write("sitecustomize.py", NO_NUMPY)
    outcomes = project.run("--deselect=tests/test_counter.py").outcomes()
    assert set(outcomes.values()) == {"passed"}, outcomes


ALIKE = [
    (torch.tensor(1.5), torch.tensor(1.5)),
    (torch.empty(0, 3), torch.empty(0, 3)),
    (torch.arange(6.0).reshape(2, 3).t(), torch.tensor([[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]])),
    (torch.ones(2, requires_grad=True), torch.ones(2)),
    (torch.nn.Parameter(torch.ones(2)), torch.ones(2)),
    (torch.ones(8)[::2], torch.ones(4)),
    (torch.ones(1).expand(5), torch.ones(5)),
    (torch.tensor([1 + 2j]).conj(), torch.tensor([1 - 2j])),
    (torch.tensor([1 + 2j]).conj().imag, torch.tensor([-2.0])),
    (torch.tensor([float("nan")]), torch.tensor([float("nan")])),
    (torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (3,)), torch.sparse_coo_tensor([[0]], [3.0], (3,))),
    (torch.empty(2, device="meta"), torch.empty(2, device="meta")),
]

UNLIKE = [
    (torch.tensor(0.0), torch.tensor(-0.0)),
    (torch.tensor(1.0), torch.tensor([1.0])),
    (torch.tensor([1]), torch.tensor([1], dtype=torch.int32)),
    (torch.tensor([1.0]), torch.tensor([1.0]).bfloat16()),
    (torch.tensor([1.0]).bfloat16(), torch.tensor([1.0078125]).bfloat16()),
    (torch.tensor([True, False]), torch.tensor([False, True])),
    (torch.tensor([1 + 2j]), torch.tensor([1 + 2j]).conj()),
    (torch.empty(0, 3), torch.empty(3, 0)),
    (torch.eye(2).to_sparse(), torch.eye(2)),
    (torch.sparse_coo_tensor([[0]], [3.0], (3,)), torch.sparse_coo_tensor([[1]], [3.0], (3,))),
]


@pytest.mark.parametrize(("first", "second"), ALIKE)
def test_equal_tensors_have_one_digest(first: torch.Tensor, second: torch.Tensor) -> None:
    assert digest(first) == digest(second)


@pytest.mark.parametrize(("first", "second"), UNLIKE)
def test_unequal_tensors_do_not(first: torch.Tensor, second: torch.Tensor) -> None:
    assert digest(first) != digest(second)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_compressed_sparse_tensors_are_compared_by_their_parts() -> None:
    rows = torch.eye(2).to_sparse_csr()
    assert digest(rows) == digest(torch.eye(2).to_sparse_csr())
    assert digest(rows) != digest(torch.eye(2).flip(0).to_sparse_csr())
    assert digest(rows) != digest(torch.eye(2).to_sparse_csc())
