"""Advice for errors of torch whose cause is known in a multi-rank test."""

from __future__ import annotations

import pytest
from _pytest._code.code import ExceptionRepr

_NO_GROUP = "Default process group has not been initialized"
_TWO_GROUPS = "trying to initialize the default process group twice"

_ASK = (
    "No process group is open on this rank. Let the test ask for the fixture `process_group`, or call\n"
    "torch.distributed.init_process_group() itself: the variables that env:// reads are set."
)
_ASK_IN_FIXTURE = (
    "No process group is open on this rank. `process_group` lives for one test: give the fixture that failed the\n"
    "scope `function`, and let it ask for `process_group`."
)
_TWICE = (
    "The fixture `process_group` has opened the default group already. For code that calls init_process_group()\n"
    "itself, let the test ask for `world` instead."
)

_NO_GPU = (
    "A rank sees the GPUs that its test declares, and no others. Declare what it needs:\n"
    "@pytest.mark.world(2, gpus=2) for a GPU for each rank, gpus=1 for one that both share."
)
_NO_CUDA = (
    "This torch is built without CUDA. Declare the GPUs that the test needs, @pytest.mark.world(2, gpus=2), and\n"
    "it is skipped where there are none; `world.device` is the rank's own, the CPU if the test declares no GPU."
)
_FAULT_ON_GPU = (
    "A GPU works while Python goes on, so the fault may lie before this line: run the test again with\n"
    "CUDA_LAUNCH_BLOCKING=1 before `pytest`. Whatever this process asks of CUDA from now on fails too; the next\n"
    "test gets new processes."
)
#: Advice by a part of the error's text, for what is the same in each phase.
_ADVICE = {
    "No CUDA GPUs are available": _NO_GPU,
    "Torch not compiled with CUDA enabled": _NO_CUDA,
    "CUDA error: device-side assert triggered": _FAULT_ON_GPU,
    "CUDA error: an illegal memory access was encountered": _FAULT_ON_GPU,
}


def hint(error: BaseException, when: str, group_is_ours: bool) -> str:
    """Return advice for this error in this phase, or an empty text."""
    try:
        text = str(error)
    except Exception:  # the user's own class
        return ""
    if _NO_GROUP in text:
        return _ASK_IN_FIXTURE if when == "setup" else _ASK
    if _TWO_GROUPS in text and group_is_ours:
        return _TWICE
    return next((advice for part, advice in _ADVICE.items() if part in text), "")


def add_hint(report: pytest.TestReport, advice: str) -> None:
    """Add the advice below the traceback."""
    if isinstance(report.longrepr, ExceptionRepr):
        report.longrepr.addsection("hint", advice)
