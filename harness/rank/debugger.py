"""A debugger on one rank, while the others wait."""

from __future__ import annotations

import os
import pdb
import sys
from collections.abc import Callable, Generator
from typing import Any

import pytest

Ask = Callable[[str], bool]


class UserTerminal:
    """The streams of the user who started pytest, as the rank inherited them; a debugger borrows them."""

    def __init__(self, streams: tuple[int, ...]) -> None:
        self._streams = streams
        self._before: list[tuple[int, int]] = []  # a descriptor and a duplicate of its file

    def lend(self, config: pytest.Config) -> None:
        """Point the standard streams at the terminal, also for pytest's suspended capture."""
        if self._before:
            return
        capturing = _suspend_capture(config)
        sys.stdout.flush()
        sys.stderr.flush()
        for fd, (stream, name) in enumerate(zip(self._streams, ("in_", "out", "err"), strict=True)):
            suspended_to = getattr(getattr(capturing, name, None), "targetfd_save", fd)
            for target in {fd, suspended_to}:
                self._before.append((target, os.dup(target)))
                os.dup2(stream, target)

    def take_back(self, config: pytest.Config) -> None:
        """Point the standard streams at the rank's own files again."""
        if not self._before:
            return
        _suspend_capture(config)
        sys.stdout.flush()
        sys.stderr.flush()
        for fd, before in self._before:
            os.dup2(before, fd)
            os.close(before)
        self._before = []
        manager: Any = config.pluginmanager.getplugin("capturemanager")
        if manager is not None:
            manager.resume()


def _suspend_capture(config: pytest.Config, in_: bool = True) -> Any:
    manager: Any = config.pluginmanager.getplugin("capturemanager")
    if manager is None:
        return None
    manager.suspend(in_=in_)
    return manager._global_capturing


class RankDebugger:
    """Lets pytest's debugger run on one rank at a time."""

    def __init__(self, config: pytest.Config, ask: Ask, release: Callable[[], None], terminal: UserTerminal) -> None:
        self._config = config
        self._ask = ask
        self._release = release
        self._terminal = terminal
        self._open = False
        self._invoke: Any = self._replace("pdbinvoke")
        self._trace: Any = self._replace("pdbtrace")
        pdb.set_trace = self.set_trace
        config.pluginmanager.register(self, "everyrank-debugger")

    def _replace(self, name: str) -> Any:
        manager = self._config.pluginmanager
        return manager.unregister(name=name) if manager.has_plugin(name) else None

    def _enter(self, reason: str) -> bool:
        """Ask the controller for the debugger; if it is granted, borrow the terminal."""
        if not self._open:
            if not self._ask(reason):
                return False
            self._open = True
        self._terminal.lend(self._config)
        return True

    def _leave(self) -> None:
        if self._open:
            self._open = False
            self._terminal.take_back(self._config)
            self._release()

    def set_trace(self, *args: Any, **kwargs: Any) -> None:
        """Handle ``breakpoint()`` and ``pdb.set_trace()``. On the ranks that get no debugger, do nothing."""
        from _pytest.debugging import pytestPDB

        if not self._enter("breakpoint"):
            return
        make: Any = pytestPDB._init_pdb
        debugger: Any = make("set_trace", *args, **kwargs)
        debugger.set_trace(sys._getframe(1))

    @pytest.hookimpl
    def pytest_leave_pdb(self, pdb: Any) -> None:
        """Return the terminal after ``continue``, unless the user has set breakpoints on this rank."""
        if not pdb.breaks:
            self._leave()

    @pytest.hookimpl
    def pytest_exception_interact(self, node: Any, call: Any, report: Any) -> None:
        if self._invoke is None or not self._enter("failure"):
            return
        try:
            self._invoke.pytest_exception_interact(node, call, report)
        finally:
            self._leave()

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: Any) -> Generator[None, Any, Any]:
        if self._trace is not None and self._enter("breakpoint"):
            from _pytest.debugging import wrap_pytest_function_for_tracing

            wrap_pytest_function_for_tracing(pyfuncitem)
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, Any, Any]:
        """Return the terminal after the test, if ``quit`` or the end of the test left the debugger open."""
        try:
            return (yield)
        finally:
            if self._open:
                self._leave()
                _suspend_capture(self._config, in_=False)  # as between any two tests
