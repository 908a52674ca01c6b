"""The fork launcher: a zygote, forked from the controller right after collection, forks the ranks.

Each rank has the very items that were collected: nothing is pickled, and nothing is imported again.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import socket
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass

from everyrank.devices import device_types
from everyrank.launch.keeper import (
    Keeper,
    control_channel,
    die_with_parent,
    live_without_parent,
    own_session,
    run_on,
)
from everyrank.launch.limits import advice
from everyrank.launch.local import LocalLauncher
from everyrank.launch.protocol import CannotLaunch, LaunchContext
from everyrank.wire.keepers import Importing, Unsafe

#: The exit code of the trial child if CUDA would not work in a fork.
_TOUCHED = 2
_ASKED = "CUDA was asked for its GPUs during collection"

#: Makes a rank of the calling process. It is called with channel, stdout, stderr, stacks and progress.
BecomeRank = Callable[[int, int, int, int, int], None]


@dataclass(frozen=True)
class Zygote:
    """The functions that a zygote's forks get from it."""

    become_rank: BecomeRank
    warm_up: Callable[[], object]  # prepares the modules that were imported since, so that no rank has to


def unavailable() -> str:
    """Return why forking is impossible or unsafe in this process, as far as that is known before a fork; or ""."""
    if not hasattr(os, "fork"):
        return f"{sys.platform} has no fork"
    if sys.platform == "darwin":
        return "system libraries on macOS are not safe after a fork"
    used = next((kind.name.upper() for kind in device_types.known() if kind.is_initialized()), "")
    return f"{used} was initialised during collection" if used else ""


def launch(context: LaunchContext) -> LocalLauncher:
    """Fork the zygote."""
    if reason := unavailable():
        raise CannotLaunch(reason)
    folder = context.new_folder()
    controller_end, zygote_end = socket.socketpair()
    controller = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = _fork()
    if pid == 0:
        try:
            controller_end.close()
            _be_zygote(zygote_end.detach(), controller, context, folder)
        finally:
            os._exit(0)
    zygote_end.close()
    launcher = LocalLauncher("fork", pid, controller_end, context.print_live, folder, forks=True)
    unsafe = launcher.handshake()
    if unsafe and not (unsafe == _ASKED and not _has_gpus()):
        launcher.close()
        raise CannotLaunch(unsafe)
    return launcher


def _has_gpus() -> bool:
    """Return whether CUDA finds GPUs. This initialises CUDA: call it only if that has happened already."""
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warning that there is no driver
        return torch.cuda.device_count() > 0


def _be_zygote(fd: int, controller: int, context: LaunchContext, folder: str) -> None:
    own_session()
    run_on(context.cores)
    control = control_channel(fd)
    try:
        zygote: Zygote = context.prepare()
    except Exception as error:
        control.send(Unsafe(f"{type(error).__name__}: {error}"))
        return
    keeper = Keeper(control, controller, folder)
    serve(keeper, zygote, _trial())


def serve(
    keeper: Keeper,
    zygote: Zygote,
    unsafe: str,
    start_otherwise: Callable[[list[int]], int] | None = None,
    successor: bool = False,
) -> None:
    """Fork ranks until the controller ends; a successor serves the keeper that forked it.

    With ``start_otherwise``, only successors fork ranks, and this process starts those that no successor can.
    """
    # The ranks share these pages of memory, which a garbage collection in a rank would copy. A collection here would
    # copy the pages that this process shares with the controller, so what little garbage there is stays.
    gc.freeze()
    zygote_pid = os.getpid()

    def start(fds: list[int]) -> int:
        pid = _fork()
        if pid == 0:
            try:
                die_with_parent(zygote_pid)
                os.setpgid(0, 0)
                keeper.release()
                zygote.become_rank(fds[0], fds[1], fds[2], fds[3], fds[4])
            except BaseException:  # it could not even file a record: its stderr is what the controller still reads
                os.write(fds[2], traceback.format_exc().encode(errors="backslashreplace"))
            finally:
                os._exit(1)
        return pid

    def succeed(names: list[str], fd: int) -> int:
        pid = _fork()
        if pid == 0:
            try:
                die_with_parent(zygote_pid)
                os.setpgid(0, 0)
                keeper.release()
                _be_successor(fd, zygote_pid, names, zygote, unsafe)
            finally:
                os._exit(1)
        return pid

    keeper.serve(start_otherwise or start, "" if successor else unsafe, succeed)


def _be_successor(fd: int, parent: int, names: list[str], zygote: Zygote, unsafe: str) -> None:
    """Import these modules and continue as a zygote. If that would be unsafe, report why and end."""
    from everyrank.launch.safe_import import Unfit, import_all

    faulthandler.disable()  # an import may crash here; the zygote notices, and no test fails
    keeper = Keeper(control_channel(fd), parent, folder="")  # the first zygote removes the run's folder
    try:
        import_all(names, lambda name: keeper.control.send(Importing(name)))
        keeper.control.send(Importing(""))  # a failure from here on is not the fault of one module
        zygote.warm_up()
        if (now := _trial()) != unsafe:
            raise Unfit(now)
    except BaseException as error:
        keeper.control.send(Unsafe(f"{type(error).__name__}: {error}"))
        return
    live_without_parent()
    serve(keeper, zygote, unsafe, successor=True)


def _trial() -> str:
    """Return why CUDA or autograd would not work in a fork, or "". A forked trial child finds that out.

    torch refuses backward in a forked child if the parent's autograd engine has started device threads. A backward at
    import time does that on a machine with an accelerator.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return ""
    try:
        pid = _fork()
    except OSError as error:
        return advice(error)
    if pid == 0:
        try:
            torch.set_num_threads(1)
            torch.ones(1, requires_grad=True).sum().backward()
        except BaseException:
            os._exit(1)
        # CUDA may be touched without being initialised: if NVML cannot count GPUs (MIG, WSL, or a CUDA build on a
        # machine without GPUs), torch counts them by CUDA itself.
        os._exit(_TOUCHED if getattr(torch._C, "_cuda_isInBadFork", bool)() else 0)
    _, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status) == _TOUCHED:
        return _ASKED
    return "" if status == 0 else "autograd ran during collection and does not work in forked processes"


def _fork() -> int:
    with warnings.catch_warnings():
        # Python 3.12 warns that threads are not copied. The copy does not need them: it runs only this loop.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()
