"""The fork launcher: a zygote, forked from the controller right after collection, forks the ranks.

Each rank has the very items that were collected: nothing is pickled and nothing imported again.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import socket
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass

from everyrank.launch.keeper import Keeper, control_channel, die_with_parent, live_without_parent, own_session
from everyrank.launch.local import LocalLauncher
from everyrank.record import Importing, Unsafe

#: How the throw-away child ends where CUDA would not work in a fork.
_TOUCHED = 2
_ASKED = "CUDA was asked for its GPUs during collection"

#: Makes a rank of the calling process. Called with channel, stdout, stderr, stacks and progress.
BecomeRank = Callable[[int, int, int, int, int], None]


@dataclass(frozen=True)
class Zygote:
    """What its forks have from it."""

    become_rank: BecomeRank
    warm_up: Callable[[], object]  # for what was imported since: what every rank would otherwise do by itself


def unavailable() -> str:
    """Why forking is not possible or not safe in this process, as far as can be seen before a fork."""
    if not hasattr(os, "fork"):
        return f"{sys.platform} has no fork"
    if sys.platform == "darwin":
        return "system libraries on macOS are not safe after a fork"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "CUDA was initialised during collection"
    return ""


def launch(prepare: Callable[[], Zygote], folder: str) -> tuple[LocalLauncher, str]:
    """Fork the zygote. Returns the launcher and why it had better not be used, or nothing."""
    ours, theirs = socket.socketpair()
    controller = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = _fork()
    if pid == 0:
        try:
            ours.close()
            _be_zygote(theirs.detach(), controller, prepare, folder)
        finally:
            os._exit(0)
    theirs.close()
    launcher = LocalLauncher("fork", pid, ours, folder)
    unsafe = launcher.handshake()
    return launcher, "" if unsafe == _ASKED and not _has_gpus() else unsafe


def _has_gpus() -> bool:
    """Asks CUDA: only for a process that has done so before, and has lost what there is to lose."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is no driver
        return torch.cuda.device_count() > 0


def _be_zygote(fd: int, controller: int, prepare: Callable[[], Zygote], folder: str) -> None:
    own_session()
    zygote = prepare()
    keeper = Keeper(control_channel(fd), controller, folder)
    _serve(keeper, zygote, _trial())


def _serve(keeper: Keeper, zygote: Zygote, unsafe: str, successor: bool = False) -> None:
    """Fork ranks for as long as the controller wants any; or, for a successor, the zygote that it came from."""
    # Everything so far is shared with the ranks; a collection in one must not copy these pages.
    gc.collect()
    gc.freeze()
    here = os.getpid()

    def start(fds: list[int]) -> int:
        pid = _fork()
        if pid == 0:
            try:
                die_with_parent(here)
                os.setpgid(0, 0)
                keeper.release()
                zygote.become_rank(fds[0], fds[1], fds[2], fds[3], fds[4])
            finally:
                os._exit(1)
        return pid

    def succeed(names: list[str], fd: int) -> int:
        pid = _fork()
        if pid == 0:
            try:
                die_with_parent(here)
                os.setpgid(0, 0)
                keeper.release()
                _be_successor(fd, here, names, zygote, unsafe)
            finally:
                os._exit(1)
        return pid

    keeper.serve(start, "" if successor else unsafe, succeed)


def _be_successor(fd: int, parent: int, names: list[str], zygote: Zygote, unsafe: str) -> None:
    """Import all that, and go on as a zygote; where it would not be a fit one for that, say so and end."""
    from everyrank.launch.safe_import import Unfit, import_all

    faulthandler.disable()  # an import may crash here, which is found out so and is nobody's failure
    keeper = Keeper(control_channel(fd), parent, folder="")  # the run's folder goes with the first of all zygotes
    try:
        import_all(names, lambda name: keeper.control.send(Importing(name)))
        keeper.control.send(Importing(""))  # what goes wrong from here on is no one module's fault
        zygote.warm_up()
        if (now := _trial()) != unsafe:
            raise Unfit(now)
    except BaseException as error:
        keeper.control.send(Unsafe(f"{type(error).__name__}: {error}"))
        return
    live_without_parent()
    _serve(keeper, zygote, unsafe, successor=True)


def _trial() -> str:
    """Whether CUDA would work in a fork; and let a throw-away child find out whether autograd does.

    torch refuses backward in a forked child when its parent's engine has started device threads
    (a backward at import time on a machine with an accelerator).
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return ""
    pid = _fork()
    if pid == 0:
        try:
            torch.set_num_threads(1)
            torch.ones(1, requires_grad=True).sum().backward()
        except BaseException:
            os._exit(1)
        # Not initialised, and yet touched: torch counts GPUs by CUDA itself where NVML cannot (MIG, WSL, and
        # a build for CUDA on a machine without).
        os._exit(_TOUCHED if getattr(torch._C, "_cuda_isInBadFork", bool)() else 0)
    _, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status) == _TOUCHED:
        return _ASKED
    return "" if status == 0 else "autograd ran during collection and does not work in forked processes"


def _fork() -> int:
    with warnings.catch_warnings():
        # The threads that Python 3.12 warns about are not needed in the copy: it runs this loop only.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()
