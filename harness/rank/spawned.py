"""Make a rank of a clean interpreter: repeat the controller's pytest run, for one file."""

from __future__ import annotations

import os
import socket
import sys

from everyrank.launch.keeper import die_with_parent
from everyrank.rank import capture, coverage
from everyrank.wire.channel import Channel
from everyrank.wire.messages import Collect, ToRank
from everyrank.wire.moved import Moved


def main(parent: int, fds: list[int]) -> None:
    die_with_parent(parent)
    os.setpgid(0, 0)
    channel: Channel[ToRank] = Channel(socket.socket(fileno=fds[0]), ToRank)
    collect = channel.receive()
    assert isinstance(collect, Collect)
    if collect.working_dir:
        collect = Moved(collect.working_dir, os.getcwd()).collect(collect)
    sys.path[:] = collect.sys_path
    os.environ.update(collect.environment)
    os.chdir(collect.invocation_dir)
    coverage.start(collect.coverage)
    terminal = capture.streams()
    # From here on, what pytest and its plugins print belongs to this rank's output.
    os.dup2(fds[1], 1)
    os.dup2(fds[2], 2)

    from everyrank.rank.start import serve_spawned

    serve_spawned(channel, collect, fds[1], fds[2], fds[3], fds[4], terminal)


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(fd) for fd in sys.argv[2:]])
