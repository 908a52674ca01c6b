"""The keeper of the spawn launcher, and how it makes a rank of a clean interpreter, or of a fork of one.

A rank repeats the controller's pytest run, for one file. The keeper itself imports neither torch nor pytest. Its
successor does: it forks ranks. Without a successor, each rank is an interpreter of its own.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from everyrank.launch import fork, surroundings
from everyrank.launch.keeper import FDS_PER_RANK, Keeper, control_channel, die_with_parent, own_session, run_on
from everyrank.wire.channel import Channel
from everyrank.wire.messages import Collect, ToRank
from everyrank.wire.moved import Moved

_RANK = "rank"


def keep(control: int, controller: int, folder: str, cores: list[int]) -> None:
    """Keep ranks for a controller."""
    surroundings.mend()
    own_session()
    run_on(cores)
    keeper = Keeper(control_channel(control), controller, folder)
    if fork.unavailable():
        keeper.serve(_start_interpreter)
    else:
        fork.serve(keeper, fork.Zygote(_become_rank, warm_up=lambda: None), "", _start_interpreter)


def _start_interpreter(fds: list[int]) -> int:
    rank = subprocess.Popen(
        [sys.executable, "-m", __spec__.name, _RANK, str(os.getpid()), *map(str, fds[:FDS_PER_RANK])],
        pass_fds=fds,  # with those of its leases, which it only holds
    )
    rank.returncode = 0  # reaped by the keeper's loop
    return rank.pid


def _become_rank(channel: int, out: int, err: int, stacks: int, progress: int) -> None:
    from everyrank.rank import capture, coverage

    orders: Channel[ToRank] = Channel(socket.socket(fileno=channel), ToRank)
    collect = orders.receive()
    assert isinstance(collect, Collect)
    if collect.working_dir:
        collect = Moved(collect.working_dir, os.getcwd()).collect(collect)
    sys.path[:] = collect.sys_path
    os.environ.update(collect.environment)
    os.chdir(collect.invocation_dir)
    coverage.start(collect.coverage)
    terminal = capture.streams()
    # From here on, what pytest and its plugins print belongs to this rank's output.
    os.dup2(out, 1)
    os.dup2(err, 2)

    from everyrank.rank.start import serve_spawned

    serve_spawned(orders, collect, out, err, stacks, progress, terminal)


def main(arguments: list[str]) -> None:
    if arguments[0] == _RANK:
        die_with_parent(int(arguments[1]))
        os.setpgid(0, 0)
        channel, out, err, stacks, progress = map(int, arguments[2:])
        _become_rank(channel, out, err, stacks, progress)
    else:
        control, controller, folder, *cores = arguments
        keep(int(control), int(controller), folder, [int(core) for core in cores])


if __name__ == "__main__":
    main(sys.argv[1:])
