"""A few tests that torch ships, unedited: their outcomes and their leaks."""

from __future__ import annotations

import pytest

from tests.inner import Inner, Project

TESTS = """\
from torch.testing._internal.distributed.rpc.tensorpipe_rpc_agent_test_fixture import TensorPipeRpcAgentTestFixture
from torch.testing._internal.distributed.rpc_utils import GENERIC_TESTS, TENSORPIPE_TESTS, generate_tests

globals().update(
    generate_tests("TensorPipe", TensorPipeRpcAgentTestFixture, GENERIC_TESTS + TENSORPIPE_TESTS, __name__)
)
"""

CLEAN = (
    "TensorPipeRpcTest::test_add",
    "TensorPipeRpcTest::test_py_udf_remote",
    "TensorPipeDistAutogradTest::test_graph_for_py_nested_call",
    "TensorPipeDistOptimizerTest::test_dist_optim",
    "TensorPipeRemoteModuleTest::test_forward_async",
)

#: test -> one of its leaks. docs/adopt.md lists all of them, with the reasons.
LEAVES = {
    "TensorPipeDistAutogradTest::test_backward_unused_send_function": "ranks 0-3 left a thread:",
    "TensorPipeDistAutogradTest::test_clean_context_during_backward": "ranks 0-3 left a process group: ProcessGroup",
    "TensorPipeTensorPipeAgentRpcTest::test_dynamic_and_static_init_rpc_together": "rank 2 left an RPC agent:",
    "TensorPipeTensorPipeAgentRpcTest::test_infer_backend_from_options": "rank 3 left an RPC agent:",
}


@pytest.fixture(scope="module")
def inner(module_project: Project) -> Inner:
    file = module_project.write("test_torchs_rpc.py", TESTS)
    return module_project.run("--adopt", "--leaks=fail", *(f"{file.name}::{test}" for test in (*CLEAN, *LEAVES)))


@pytest.mark.parametrize("test", CLEAN)
def test_a_test_that_cleans_up_has_no_leak(inner: Inner, test: str) -> None:
    result = inner.tests[f"test_torchs_rpc.py::{test}"]
    assert result.outcome == "passed", result.text


@pytest.mark.parametrize("test", LEAVES)
def test_leaks_of_torchs_tests_are_reported(inner: Inner, test: str) -> None:
    result = inner.tests[f"test_torchs_rpc.py::{test}"]
    assert "the test left something behind" in result.text
    assert LEAVES[test] in result.text
