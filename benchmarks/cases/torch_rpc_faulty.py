"""torch's own RPC tests with an agent that drops and delays messages, in their own file as in torch: importing that
agent replaces the list of backends (pytorch#104620), which makes two of the other tests fail."""

from torch.testing._internal.common_utils import run_tests
from torch.testing._internal.distributed.rpc.faulty_rpc_agent_test_fixture import FaultyRpcAgentTestFixture
from torch.testing._internal.distributed.rpc_utils import FAULTY_AGENT_TESTS, generate_tests

globals().update(generate_tests("Faulty", FaultyRpcAgentTestFixture, FAULTY_AGENT_TESTS, __name__))

if __name__ == "__main__":
    run_tests()
