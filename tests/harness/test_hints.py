"""The advice below an error of torch whose cause is known, for errors that need a GPU to happen."""

from __future__ import annotations

import expecttest
import pytest
from everyrank.rank.hints import hint

#: As torch 2.14 raises them; the lines after the first are the same for all.
NO_GPU = "No CUDA GPUs are available"
FAULT = "CUDA error: {}\nCUDA kernel errors might be asynchronously reported at some other API call"


class TestHints(expecttest.TestCase):
    def test_a_rank_that_sees_no_gpu(self) -> None:
        self.assertExpectedInline(
            hint(RuntimeError(NO_GPU), "call", group_is_ours=True),
            """\
A rank sees the GPUs that its test declares, and no others. Declare what it needs:
@pytest.mark.world(2, gpus=2) for a GPU for each rank, gpus=1 for one that both share.""",
        )

    def test_a_torch_without_cuda(self) -> None:
        self.assertExpectedInline(
            hint(AssertionError("Torch not compiled with CUDA enabled"), "call", group_is_ours=True),
            """\
This torch is built without CUDA. Declare the GPUs that the test needs, @pytest.mark.world(2, gpus=2), and
it is skipped where there are none; `world.device` is the rank's own, the CPU if the test declares no GPU.""",
        )

    def test_a_fault_on_a_gpu(self) -> None:
        self.assertExpectedInline(
            hint(RuntimeError(FAULT.format("device-side assert triggered")), "call", group_is_ours=True),
            """\
A GPU works while Python goes on, so the fault may lie before this line: run the test again with
CUDA_LAUNCH_BLOCKING=1 before `pytest`. Whatever this process asks of CUDA from now on fails too; the next
test gets new processes.""",
        )


@pytest.mark.parametrize(
    ("fault", "advised"),
    [("an illegal memory access was encountered", True), ("out of memory", False), ("invalid device ordinal", False)],
)
def test_only_faults_that_show_late_and_stay_are_explained(fault: str, advised: bool) -> None:
    assert bool(hint(RuntimeError(FAULT.format(fault)), "call", group_is_ours=True)) is advised
