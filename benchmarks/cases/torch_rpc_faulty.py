"""torch's own tests of RPC with an agent that drops and delays messages. In a file of their own, as torch has them:
to import that agent makes the list of backends anew (pytorch#104620), which two of the other tests stumble over."""

from torch.testing._internal.common_utils import run_tests
from torch.testing._internal.distributed.rpc.faulty_rpc_agent_test_fixture import FaultyRpcAgentTestFixture
from torch.testing._internal.distributed.rpc_utils import FAULTY_AGENT_TESTS, generate_tests

globals().update(generate_tests("Faulty", FaultyRpcAgentTestFixture, FAULTY_AGENT_TESTS, __name__))

if __name__ == "__main__":
    run_tests()
