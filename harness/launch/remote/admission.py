"""Wait at the door for the connections of ranks that keepers were ordered to start."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import IO

from everyrank.launch.remote.door import ERR, OUT, RANK, Door, Visitor
from everyrank.launch.remote.link import ANSWER, Link, RankChannel, RemoteSeat
from everyrank.patience import Patience


def admit(door: Door, ordered: Mapping[int, Link], live: bool) -> list[RemoteSeat]:
    """Return the seats of these ranks. Wait for them as long as their keepers are there and try to start them."""
    visitors = {(kind, number) for kind in ([RANK, OUT, ERR] if live else [RANK]) for number in ordered}
    patience = Patience(ANSWER, lambda: sum(link.waited_for_core() for link in ordered.values()))

    def hopeless() -> bool:
        for link in ordered.values():
            if not link.lost:
                link.listen()
        missing = visitors - door.arrived()
        return all(ordered[number].lost or ordered[number].has_refused(number) for _, number in missing)

    admitted = door.admit(visitors, patience, hopeless)
    return [_seat(number, link, admitted) for number, link in ordered.items()]


def _seat(number: int, link: Link, admitted: Mapping[Visitor, socket.socket]) -> RemoteSeat:
    streams: dict[str, IO[bytes]] = {}
    for kind, name in ((OUT, "out"), (ERR, "err")):
        if (stream := admitted.get((kind, number))) is not None:
            stream.setblocking(False)
            streams[name] = os.fdopen(stream.detach(), "rb", buffering=0)
    connection = admitted.get((RANK, number))
    if connection is None:
        connection, other = socket.socketpair()
        other.close()
        if not link.lost and not link.has_refused(number):
            link.lose_silent()
    return RemoteSeat(number, RankChannel(connection, link.clock_ahead), link, streams)
