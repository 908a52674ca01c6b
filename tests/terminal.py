"""A process at a terminal of its own, as a person would start it."""

from __future__ import annotations

import fcntl
import os
import struct
import termios
from typing import Any

import pexpect
from pexpect import fdpexpect

from tests.forked import ForkedRun
from tests.inner import Project


class Terminal(fdpexpect.fdspawn):  # type: ignore[misc]
    """A terminal whose process a fork server has forked."""

    def __init__(self, process: ForkedRun, fd: int, timeout: float) -> None:
        super().__init__(fd, encoding="utf-8", timeout=timeout)
        self._process = process
        self.exitstatus: int | None = None

    def sendeof(self) -> None:
        self.send("\x04")

    def sendintr(self) -> None:
        self.send("\x03")

    def close(self, force: bool = False) -> None:
        """Hang up, wait for the process, and note its exit status."""
        if not self.closed:
            super().close()
            if force:
                self._process.kill()
            self.exitstatus = self._process.wait(240)
            self._process.stdout.close()


def at_terminal(
    project: Project, command: list[str], environment: dict[str, str], rows: int, columns: int, timeout: float
) -> Any:
    """Run the command in a project's folder; return a pexpect child, which waits so many seconds for a text."""
    assert project.servers
    server = project.servers.find(command, project.folder, environment)
    if server is None:
        program, *arguments = command
        return pexpect.spawn(
            program, arguments, cwd=str(project.folder), env=environment, dimensions=(rows, columns), timeout=timeout,
            encoding="utf-8",
        )  # fmt: skip
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = server.start(command, project.folder, environment, terminal=theirs)
    os.close(theirs)
    return Terminal(process, ours, timeout)
