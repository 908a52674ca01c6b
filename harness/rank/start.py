"""How a process becomes a rank: a fork of the zygote, or a clean interpreter that collects again."""

from __future__ import annotations

import functools
import os
import socket

import pytest
from everyrank.launch.fork import BecomeRank
from everyrank.rank import capture
from everyrank.rank.rank import Rank
from everyrank.wire.channel import Channel
from everyrank.wire.messages import Collect, ToRank


def prepare_ranks(session: pytest.Session) -> BecomeRank:
    """Prepare, in the zygote, what all ranks share. Return the function that turns a fork into a rank."""
    capture.leave(session.config)
    rank = Rank(session, capture.streams())

    def become_rank(channel: int, out: int, err: int, stacks: int, progress: int) -> None:
        capture.begin(session.config, out, err)
        rank.serve(Channel(socket.socket(fileno=channel), ToRank), stacks, progress)

    return become_rank


def serve_spawned(
    channel: Channel[ToRank],
    collect: Collect,
    out: int,
    err: int,
    stacks: int,
    progress: int,
    terminal: tuple[int, ...],
) -> None:
    """Run pytest's main in a clean interpreter, and serve as a rank instead of pytest's run loop."""
    from _pytest.config import _prepareconfig

    config = _prepareconfig(collect.args, ["everyrank.plugin"] if not _is_installed() else None)
    for name, value in collect.options.items():
        setattr(config.option, name, value)
    config.args = [collect.file]
    config.pluginmanager.register(_Spawned(channel, (out, err, stacks, progress), terminal), "everyrank-spawned")
    config.hook.pytest_cmdline_main(config=config)
    os._exit(1)


@functools.cache
def _is_installed() -> bool:
    from importlib.metadata import entry_points

    return any(entry.name == "everyrank" for entry in entry_points(group="pytest11"))


class _Spawned:
    """Replaces pytest's run loop: after collection, this process takes orders."""

    def __init__(self, channel: Channel[ToRank], fds: tuple[int, int, int, int], terminal: tuple[int, ...]) -> None:
        self._channel = channel
        self._terminal = terminal
        self._fds = fds

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        out, err, stacks, progress = self._fds
        capture.leave(session.config)
        capture.begin(session.config, out, err)
        Rank(session, self._terminal).serve(self._channel, stacks, progress)
        return True
