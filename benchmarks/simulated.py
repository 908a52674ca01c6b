"""A pytest plugin: the launcher ``simulated``, whose hosts exist only as connections.

The controller is real, and so is everything between it and its remote keepers: the door, the messages, TCP. One more
process plays all keepers and all ranks. Each rank answers its order after ``BENCHMARK_CASE`` seconds, as if the test
had passed then.
"""

from __future__ import annotations

import heapq
import itertools
import os
import selectors
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from everyrank.launch import launchers
from everyrank.launch.protocol import LaunchContext, Launcher
from everyrank.launch.remote import alike, run_folder
from everyrank.launch.remote.door import KEEPER, RANK, Door, knock, new_secret
from everyrank.launch.remote.launcher import RemoteLauncher
from everyrank.launch.remote.link import Link
from everyrank.patience import Patience
from everyrank.wire.channel import Channel, Closed
from everyrank.wire.keepers import Close, Exited, Kill, Started
from everyrank.wire.messages import ClosedUp, CloseUp, Leave, LeftWorld, Order, Phase, Progressed, Record, ToRank
from everyrank.wire.remote import (
    AskPrinted,
    AskState,
    Done,
    FromRemoteKeeper,
    Port,
    Printed,
    ReservePort,
    StartSeat,
    State,
    ToRemoteKeeper,
)

launchers.BUILT_IN["simulated"] = __name__


def launch(context: LaunchContext) -> Launcher:
    secret, folder = new_secret(), context.new_folder()
    run_folder.mark(folder, secret)
    door, nodes = Door("127.0.0.1", secret), int(os.environ["BENCHMARK_NODES"])
    command = [sys.executable, "-m", __name__, str(door.address[1]), secret.hex(), folder, str(nodes)]
    process = subprocess.Popen(command)
    came = door.admit({(KEEPER, number) for number in range(nodes)}, Patience(60), lambda: process.poll() is not None)
    ready, links = alike.describe(None, "", folder), []
    for number in range(nodes):
        channel: Channel[Any] = Channel(came[KEEPER, number], FromRemoteKeeper)
        links.append(Link(f"simulated node {number}", channel, channel.receive(), ready.boot))
    return Simulated(folder, door, links, process)


class Simulated(RemoteLauncher):
    """Hosts that another process plays."""

    def __init__(self, folder: str, door: Door, links: list[Link], process: subprocess.Popen[bytes]) -> None:
        super().__init__("simulated", folder, door, links, live=False, forks=True)
        self.same_host, self.hosts.several = False, True  # as if these were other hosts
        self._process = process

    def close(self) -> None:
        super().close()
        self.say_goodbye(0)
        for link in self.links:
            link.channel.close()
        self._process.wait(60)


# --- the process that plays the hosts ---------------------------------------------------------------

_PHASES = [Phase(when, "passed", {}) for when in ("setup", "call", "teardown")]


class Hosts:
    """All keepers and all their ranks."""

    def __init__(self, port: int, secret: bytes, folder: str, nodes: int, case: float) -> None:
        self._address, self._secret, self._case = ("127.0.0.1", port), secret, case
        self._selector = selectors.DefaultSelector()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._ranks: dict[int, Channel[ToRank]] = {}
        for number in range(nodes):
            keeper: Channel[ToRemoteKeeper] = Channel(self._knock(KEEPER, number), ToRemoteKeeper)
            keeper.send(alike.describe(None, f"node {number}", folder))
            self._selector.register(keeper, selectors.EVENT_READ, self._keep(keeper))

    def run(self) -> None:
        while self._selector.get_map():  # until the controller has closed all connections, or is gone
            patience = self._due[0][0] - time.monotonic() if self._due else None
            for key, _ in self._selector.select(patience if patience is None else max(0.0, patience)):
                self._hear(key)
            while self._due and self._due[0][0] <= time.monotonic():
                heapq.heappop(self._due)[2]()

    def _knock(self, kind: bytes, number: int) -> Any:
        return knock(self._address, self._secret, (kind, number))

    def _hear(self, key: selectors.SelectorKey) -> None:
        channel: Any = key.fileobj
        try:
            for message in channel.arrived():
                key.data(message)
        except Closed:
            self._selector.unregister(channel)

    def _keep(self, keeper: Channel[ToRemoteKeeper]) -> Callable[[Any], None]:
        """Return what a keeper does with a message."""

        def obey(message: Any) -> None:
            if isinstance(message, StartSeat):
                rank: Channel[ToRank] = Channel(self._knock(RANK, message.number), ToRank)
                self._ranks[message.number] = rank
                self._selector.register(rank, selectors.EVENT_READ, self._be_rank(rank, keeper, message.number))
                keeper.send(Started(message.number, 1 << 22))
            elif isinstance(message, ReservePort):
                keeper.send(Port(message.request, 1))
            elif isinstance(message, AskState):
                keeper.send(State(message.request, 0.0, False, False))
            elif isinstance(message, AskPrinted):
                keeper.send(Printed(message.request, [], ""))
            elif isinstance(message, Kill):
                for number in message.numbers:
                    self._end(keeper, number, 9)
            elif isinstance(message, Close):
                keeper.send(Done(0))

        return obey

    def _be_rank(self, rank: Channel[ToRank], keeper: Channel[ToRemoteKeeper], number: int) -> Callable[[Any], None]:
        """Return what a rank does with a message."""

        def obey(message: Any) -> None:
            if isinstance(message, Order):
                rank.send(Progressed(message.number, "call"))
                self._later(self._case, lambda: rank.send(_record(message)))
            elif isinstance(message, CloseUp):
                rank.send(ClosedUp(""))
            elif isinstance(message, Leave):
                rank.send(LeftWorld(""))
                self._later(0.0, lambda: self._end(keeper, number, 0))

        return obey

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time.monotonic() + seconds, next(self._count), action))

    def _end(self, keeper: Channel[ToRemoteKeeper], number: int, status: int) -> None:
        if (rank := self._ranks.pop(number, None)) is not None:
            self._selector.unregister(rank)
            rank.close()
            keeper.send(Exited(number, status))


def _record(order: Order) -> Record:
    return Record(order.nodeid, _PHASES, [], [], [], None)


if __name__ == "__main__":
    Hosts(
        int(sys.argv[1]),
        bytes.fromhex(sys.argv[2]),
        sys.argv[3],
        int(sys.argv[4]),
        float(os.environ["BENCHMARK_CASE"]),
    ).run()
    shutil.rmtree(sys.argv[3], ignore_errors=True)  # a controller that was killed has left its folder
