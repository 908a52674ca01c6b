"""Paths below a folder that an engine has copied to another host."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

import msgspec
from everyrank.wire.messages import Collect


@dataclass(frozen=True)
class Moved:
    """A folder of the controller's host, and its copy ``here``."""

    folder: str
    here: str

    def path(self, path: str) -> str:
        """Return a path as it is here; others than those below the folder are the same."""
        if path == self.folder or path.startswith(self.folder + os.sep):
            return self.here + path[len(self.folder) :]
        return path

    def collect(self, order: Collect) -> Collect:
        """Return an order to collect with the paths of this host."""
        options = order.options.items()
        return msgspec.structs.replace(
            order,
            args=[self.path(argument) for argument in order.args],
            # The folder for temp folders is this host's already.
            options={name: value if name == "basetemp" else self._option(value) for name, value in options},
            invocation_dir=self.path(order.invocation_dir),
            file=self.path(order.file),
            sys_path=self._sys_path(order.sys_path),
        )

    def _option(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._option(entry) for entry in value]
        return self.path(value) if isinstance(value, str) else value

    def _sys_path(self, theirs: list[str]) -> list[str]:
        """Return what lies in the copy, and after it what this host has installed."""
        copied = [moved for path in theirs if (moved := self.path(path)) != path]
        return list(dict.fromkeys([*copied, *sys.path]))
