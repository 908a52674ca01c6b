"""A debugger on one rank, while the others wait."""

from __future__ import annotations

import contextlib
import os
import pdb
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

Ask = Callable[[str], bool]


class Terminal:
    """The real terminal's streams, as the rank inherited them, for the time of a debugger.

    Where pytest captures file descriptors, its own suspension gives the terminal back already.
    """

    def __init__(self, captures_fds: bool) -> None:
        self._saved = [] if captures_fds else [os.dup(fd) for fd in (0, 1, 2)]

    @contextlib.contextmanager
    def given(self) -> Iterator[None]:
        if not self._saved:
            yield
            return
        before = [os.dup(fd) for fd in (0, 1, 2)]
        for fd, saved in enumerate(self._saved):
            os.dup2(saved, fd)
        try:
            yield
        finally:
            sys.stdout.flush()
            for fd, old in enumerate(before):
                os.dup2(old, fd)
                os.close(old)


class RankDebugger:
    """Stands between pytest's debugger and the one rank that a person may talk to."""

    def __init__(self, config: pytest.Config, ask: Ask, release: Callable[[], None], terminal: Terminal) -> None:
        self._config = config
        self._ask = ask
        self._release = release
        self._terminal = terminal
        self._invoke: Any = config.pluginmanager.unregister(name="pdbinvoke") if self._has("pdbinvoke") else None
        self._trace: Any = config.pluginmanager.unregister(name="pdbtrace") if self._has("pdbtrace") else None
        pdb.set_trace = self.set_trace
        config.pluginmanager.register(self, "everyrank-debugger")

    def _has(self, name: str) -> bool:
        return self._config.pluginmanager.has_plugin(name)

    def set_trace(self, *args: Any, header: str | None = None, **kwargs: Any) -> None:
        """What ``breakpoint()`` and ``pdb.set_trace()`` come to. On the other ranks: nothing."""
        from _pytest.debugging import pytestPDB

        if not self._ask("breakpoint"):
            return
        frame = sys._getframe(1)
        make: Any = pytestPDB._init_pdb
        debugger: Any = make("set_trace", *args, **kwargs)
        if header is not None:
            debugger.message(header)
        # The prompt comes at the next line of the test, after this has returned, so the terminal
        # stays given until the debugger lets go: see pytest_leave_pdb.
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(self._terminal.given())
        debugger.set_trace(frame)

    @pytest.hookimpl
    def pytest_leave_pdb(self) -> None:
        self._stack.close()
        self._release()

    @pytest.hookimpl
    def pytest_exception_interact(self, node: Any, call: Any, report: Any) -> None:
        if self._invoke is None or not self._ask("failure"):
            return
        self._stack = contextlib.ExitStack()
        with self._terminal.given():
            self._invoke.pytest_exception_interact(node, call, report)
        self._release()

    @pytest.hookimpl(wrapper=True)
    def pytest_pyfunc_call(self, pyfuncitem: Any) -> Iterator[None]:
        if self._trace is not None and self._ask("breakpoint"):
            from _pytest.debugging import wrap_pytest_function_for_tracing

            self._stack = contextlib.ExitStack()
            self._stack.enter_context(self._terminal.given())
            wrap_pytest_function_for_tracing(pyfuncitem)
        return (yield)
