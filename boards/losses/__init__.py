"""The board of losses. Beside a torch for the CPU, PyPI's torchvision, which some packages need, does not import."""

import contextlib
import sys
from types import ModuleType

with contextlib.suppress(ImportError):
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        # "operator torchvision::nms does not exist": this registers operators that no loss needs.
        sys.modules["torchvision._meta_registrations"] = ModuleType("torchvision._meta_registrations")
