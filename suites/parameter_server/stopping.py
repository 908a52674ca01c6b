"""Stop one report at a line of the server until another has arrived, so that threads do not meet by chance."""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import torch
from everyrank.fixtures.failing import InjectedError
from everyrank.suites.parameter_server import door, locks, reports
from everyrank.suites.parameter_server.reports import PATIENCE

#: Files of the kit through which a call goes on its way to the server, and an answer on its way back.
_OURS = {door.__file__, locks.__file__, reports.__file__, __file__}

#: Folders of Python's own files and of torch's.
NOT_THE_SERVERS = tuple(
    os.path.join(folder, "") for folder in (sysconfig.get_paths()["stdlib"], os.path.dirname(torch.__file__))
)
_installing = threading.Lock()


def install_trace(trace: Any) -> None:
    # Python 3.11 refuses a second thread in here, and an audit hook may let one in.
    with _installing:
        sys.settrace(trace)


class Stop:
    """A line of the server at which one report stops, counted from its call, or from the update.

    A report that runs through fewer lines does not stop. If another thread makes the update, that thread stops before
    the optimizer's step.
    """

    def __init__(self, line: int, in_update: bool = False) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        self._line, self._in_update = line, in_update
        self._counts, self._over = not in_update, False
        self._thread = 0

    def calling(self, call: Callable[[], Any]) -> Any:
        """Make the call that is to stop. Set ``reached`` when it has stopped, or when it never will."""
        self._thread = threading.get_ident()
        before = sys.gettrace()
        install_trace(self._trace)
        try:
            return call()
        finally:
            self._over = True
            install_trace(before)
            self.reached.set()

    def update_begins(self) -> None:
        """Stop, or begin to count lines, in the thread that is about to step the optimizer."""
        if not self._in_update or self._over:
            return
        if self._line and threading.get_ident() == self._thread:
            self._counts = True
        else:
            self._stop()

    def _stop(self) -> None:
        self._over = True
        self.reached.set()
        self.go_on.wait(4 * PATIENCE)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        file = frame.f_code.co_filename
        if file in _OURS or file.startswith(NOT_THE_SERVERS):
            return None
        if event == "line" and self._counts and not self._over:
            self._line -= 1
            if self._line < 0:
                self._stop()
        return self._trace


class Updates:
    """The updates of one server, and the stop of the next update, if it has one."""

    stop: Stop | None = None
    fails = ""
    """The text of the error that the next update of the server raises, if it fails."""
    acts = ""
    """What the user's optimizer does after each step: it changes a ``buffer``, gives parameters new ``memory``, or
    freezes the last one that is trained (``freeze``) and thaws it again (``thaw``)."""
    modules: tuple[torch.nn.Module, ...] = ()
    """The module that the server was given, and that of the reference."""
    known = False
    """Whether the server's optimizer has the parameters of the module that the server was given."""

    def __init__(self) -> None:
        self._frozen: dict[torch.nn.Module, torch.nn.Parameter] = {}
        self._without_hook: list[tuple[torch.nn.Module, torch.optim.Optimizer]] = []  # a later one

    def begin(self, *_: object) -> None:
        """Stop if the next update has a stop; this is a hook of the server's optimizer."""
        if self.stop is not None:
            self.stop.update_begins()
        if self.fails:
            raise InjectedError(self.fails)

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Act after the steps of an optimizer, if its module is known."""
        first = optimizer.param_groups[0]["params"][0]
        for number, module in enumerate(self.modules):
            if any(first is parameter for parameter in module.parameters()):
                optimizer.register_step_post_hook(partial(self.end, module))
                self._without_hook.append((module, optimizer))
                self.known |= number == 0

    def act(self, acts: str) -> None:
        """Let the optimizer act from now on, if its module is known."""
        self.acts = acts if self.known else ""
        while self.acts == "memory" and self._without_hook:
            module, optimizer = self._without_hook.pop()
            optimizer.register_step_post_hook(partial(self.renew, module))

    def renew(self, module: torch.nn.Module, *_: object) -> None:
        """Give parameters new memory; this hook is registered after the server was built."""
        for parameter in module.parameters() if self.acts == "memory" else ():
            parameter.data = parameter.data * 0.5

    def end(self, module: torch.nn.Module, *_: object) -> None:
        """Act on the module after a step, as a user's own optimizer may."""
        for buffer in module.buffers() if self.acts == "buffer" else ():
            buffer.add_(1)
        if self.acts == "freeze":
            last = [parameter for parameter in module.parameters() if parameter.requires_grad][-1]
            self._frozen[module] = last
            last.requires_grad_(False)
        elif self.acts == "thaw":
            self._frozen.pop(module).requires_grad_(True)
