"""How a process becomes a rank: a fork of the zygote, or a clean interpreter that collects again."""

from __future__ import annotations

import functools
import os
import socket

import pytest
from everyrank import capture
from everyrank.channel import Channel
from everyrank.rank import Rank
from everyrank.record import Collect, ToRank


def become_rank(session: pytest.Session, channel: int, out: int, err: int, stacks: int, progress: int) -> None:
    """For a fork of the zygote."""
    terminal = capture.take_over(session.config, out, err)
    Rank(Channel(socket.socket(fileno=channel), ToRank), session, stacks, progress, terminal).serve()


def serve_spawned(
    channel: Channel[ToRank],
    collect: Collect,
    out: int,
    err: int,
    stacks: int,
    progress: int,
    terminal: tuple[int, ...],
) -> None:
    """For a clean interpreter: pytest's main, with this plugin in place of its run loop."""
    from _pytest.config import _prepareconfig

    config = _prepareconfig(collect.args, ["everyrank.plugin"] if not _installed() else None)
    for name, value in collect.options.items():
        setattr(config.option, name, value)
    config.args = [collect.file]
    config.pluginmanager.register(_Spawned(channel, (out, err, stacks, progress), terminal), "everyrank-spawned")
    config.hook.pytest_cmdline_main(config=config)
    os._exit(1)


@functools.cache
def _installed() -> bool:
    from importlib.metadata import entry_points

    return any(entry.name == "everyrank" for entry in entry_points(group="pytest11"))


class _Spawned:
    """In place of pytest's run loop: the session is collected, now take orders."""

    def __init__(self, channel: Channel[ToRank], fds: tuple[int, int, int, int], terminal: tuple[int, ...]) -> None:
        self._channel = channel
        self._terminal = terminal
        self._fds = fds

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        out, err, stacks, progress = self._fds
        terminal = capture.take_over(session.config, out, err, self._terminal)
        Rank(self._channel, session, stacks, progress, terminal).serve()
        return True
