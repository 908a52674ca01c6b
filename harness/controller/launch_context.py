"""What a launcher may need of a run: its folder, its cores, and a process that forks ranks."""

from __future__ import annotations

import contextlib
import functools
import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from everyrank.declare.stash import DECLARATION
from everyrank.launch import fork
from everyrank.launch.protocol import LaunchContext
from everyrank.leaks.snapshot import snapshot
from everyrank.rank.seeds import accelerated
from everyrank.rank.start import prepare_ranks
from everyrank.resources import cores


def launch_context(
    session: pytest.Session,
    leave_behind: Callable[[], object] = lambda: None,
    terminal: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    rank_cores: str = cores.ALL,
) -> LaunchContext:
    """Return what a launcher may need of this run."""
    live = session.config.getoption("capture", "fd") != "fd"
    return LaunchContext(
        prepare=functools.partial(_prepare_zygote, session, leave_behind),
        new_folder=_new_folder,
        print_live=live,
        terminal=terminal,
        session=session,
        cores=cores.of_ranks(session.config, rank_cores),
    )


def _new_folder() -> str:
    try:
        return tempfile.mkdtemp(prefix="everyrank-")
    except OSError as error:
        raise pytest.UsageError(
            f"everyrank: cannot make a folder for this run in the temp folder {tempfile.gettempdir()}: "
            f"{error.strerror}. Make room there, or set TMPDIR to a folder that can be written."
        ) from None


def _prepare_zygote(session: pytest.Session, leave_behind: Callable[[], object]) -> fork.Zygote:
    """Prepare the zygote: do once what every rank would otherwise do, each with memory pages of its own.

    ``leave_behind`` drops what belongs to the controller alone.
    """
    leave_behind()
    declared = [item.stash[DECLARATION] for item in session.items if DECLARATION in item.stash]
    fixtures = {name for declaration in declared for name in declaration.fixtures}
    if fixtures & {"process_group", "rpc_agent", "warm_rpc_agent"}:
        import torch.distributed
    if fixtures & {"rpc_agent", "warm_rpc_agent"}:
        import everyrank.rpc.agents  # noqa: F401
        import torch.distributed.rpc
        import torch.distributed.rpc.rref_proxy  # noqa: F401
    become_rank = prepare_ranks(session)
    _warm_up()
    return fork.Zygote(become_rank, _warm_up)


def _warm_up() -> None:
    """Let libraries do in the zygote what they do on their first call, so that no fork has to."""
    if "torch" in sys.modules:
        accelerated()
    if sys.modules.get("numpy") is not None:
        import numpy.random  # noqa: F401
    snapshot()
