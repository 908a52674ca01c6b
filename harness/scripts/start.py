"""What Python runs before any program that a test starts (``on_path/sitecustomize.py``): it must cost little."""

from __future__ import annotations

import os
import sys
from types import ModuleType

from everyrank.scripts.after_import import AfterImport

_TORCHRUN = "torch.distributed.elastic.multiprocessing.api"


def start() -> None:
    """Let a rank of a script be watched; and let torchrun, if this process turns out to be it, help its watcher."""
    if os.environ.get("RANK"):  # torchrun sets it for the processes of a script
        from everyrank.scripts import ranks

        ranks.start()
    else:
        sys.meta_path.insert(0, AfterImport(_TORCHRUN, _help))


def _help(api: ModuleType) -> None:
    from everyrank.scripts import agent

    agent.wrap(api)
