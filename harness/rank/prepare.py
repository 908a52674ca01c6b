"""Prepare a process to be a rank: what all forks of a zygote share, and what each process needs separately."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys

import pytest
from everyrank.launch.protocol import FATAL, STACKS_SIGNAL


def prepare_session(config: pytest.Config, hooks: object) -> None:
    """Prepare pytest in this process, and in its forks: ``hooks`` is the plugin that files what happens."""
    os.environ["OMP_NUM_THREADS"] = "1"
    # A host name may not resolve in a sandbox; ranks on one host need only its loopback interface.
    loopback = "lo" if sys.platform == "linux" else "lo0"
    for variable in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        os.environ.setdefault(variable, loopback)
    manager = config.pluginmanager
    controller = manager.get_plugin("everyrank-controller")
    if controller is not None:
        manager.unregister(controller)
    if hasattr(config.option, "randomly_reset_seed"):
        # pytest-randomly would give all ranks the same seed, which hides missing communication.
        config.option.randomly_reset_seed = False
    manager.register(hooks, "everyrank-rank")
    # Other plugins get this rank's reports in the controller. From here, xdist's worker would write to its
    # master on a stream that it shares with the controller and all ranks.
    for hook in (config.hook.pytest_runtest_logreport, config.hook.pytest_warning_recorded):
        for implementation in hook.get_hookimpls():
            if implementation.plugin is not hooks:
                hook._remove_plugin(implementation.plugin)


def _let_wakers_run_on() -> None:
    """Let a thread of a rank that is woken wait for its turn, instead of preempting the thread that woke it.

    gloo's thread asks the kernel for events in a loop while another thread holds a lock that it needs. With more
    ranks than cores, the holder is often preempted by a rank that it has just woken, and gloo's thread spins until
    the holder has its turn again: 1,800 calls of epoll_wait in one all_reduce of 4 ranks on 2 cores. The policy for
    batch work ends this: an all_reduce and a barrier take 0.7 ms instead of 4.7. The share of the processor stays;
    threads and forks inherit the policy.
    """
    if hasattr(os, "SCHED_BATCH") and os.sched_getscheduler(0) == os.SCHED_OTHER:
        with contextlib.suppress(OSError):  # a sandbox may refuse it
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _sleep_at_death() -> None:
    """Let this process sleep at a fatal signal, after faulthandler has written: so its C frames can be read.

    The handler is libc's own ``sleep``, which takes the number of the signal for its seconds. It handles one signal:
    after it, the same fault or a second signal ends the process as usual.
    """
    faulthandler.disable()  # pytest has enabled it: it calls the handlers that it found
    libc = ctypes.CDLL(None)
    with contextlib.suppress(AttributeError):  # not glibc
        libc.sysv_signal.argtypes = (ctypes.c_int, ctypes.c_void_p)
        for number in FATAL.values():
            libc.sysv_signal(number, ctypes.cast(libc.sleep, ctypes.c_void_p))


def prepare_process(stacks: int, sleeps_at_death: bool = False) -> None:
    """Prepare what each process needs separately. ``stacks`` is the file for the stacks of its threads."""
    _let_wakers_run_on()
    if sleeps_at_death:
        _sleep_at_death()
    faulthandler.enable(file=stacks)
    faulthandler.register(STACKS_SIGNAL, file=stacks, all_threads=True, chain=False)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL if number == signal.SIGTERM else signal.default_int_handler)
    if "torch" in sys.modules:
        import torch

        # torchrun does the same. After a fork, OpenMP can hang with more than one thread.
        torch.set_num_threads(1)
