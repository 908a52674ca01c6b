"""The hosts of remote keepers: which keepers have the ranks of a world, and what their hosts have for these."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

from everyrank.devices.protocol import Gpu
from everyrank.launch.hosts import Hosts
from everyrank.launch.protocol import Seat, Shape
from everyrank.launch.remote.link import Link, RemoteSeat
from everyrank.resources.gpus.needs import Needs
from everyrank.resources.gpus.world_gpus import GpusOfHost, GpusOnHosts
from everyrank.wire.remote import FreePort, Port, RemoveFolder, ReservePort


class RemoteHosts(Hosts):
    """The hosts of these links, which may become more or fewer."""

    def __init__(self, folder: str, links: Sequence[Link]) -> None:
        super().__init__(folder)
        self._links = links

    def add(self, link: Link) -> None:
        """Take in the host of another keeper."""
        self.several = self.several or not link.same_host
        self.share_files = self.share_files and not link.ready.folder_id

    def folder_of(self, seat: Seat) -> str:
        return _link_of(seat).ready.folder

    def share_folder(self, seats: Sequence[Seat]) -> bool:
        return len({_link_of(seat).ready.folder_id for seat in seats}) == 1

    def remove_folder(self, name: str, seats: Sequence[Seat]) -> None:
        super().remove_folder(name, seats)
        for folder_id, link in {_link_of(seat).ready.folder_id: _link_of(seat) for seat in seats}.items():
            if folder_id:
                link.send(RemoveFolder(name))

    @contextlib.contextmanager
    def rendezvous(self, first: Seat) -> Iterator[tuple[str, int]]:
        link = _link_of(first)
        port = link.ask(ReservePort(link.request()), Port)
        address = link.address
        if port is None or not address:
            yield "", 0  # the keeper is lost, and rank 0 with it
            return
        try:
            yield address, port.port
        finally:
            link.send(FreePort(port.port))

    def gpus_of(self, seats: Sequence[Seat], needs: Needs) -> GpusOnHosts:
        links = [_link_of(seat) for seat in seats]
        hosts = _by_host(links)
        gpus = {node: GpusOfHost(needs.suitable(_gpus(there))[: len(there)]) for node, there in hosts.items()}
        return GpusOnHosts([(gpus[link.ready.node], hosts[link.ready.node].index(link)) for link in links])

    def count_gpus(self) -> int:
        return sum(len(_gpus(there)) for there in _by_host(self._links).values())


def _link_of(seat: Seat) -> Link:
    assert isinstance(seat, RemoteSeat)
    return seat.link


def choose(links: Sequence[Link], shape: Shape) -> list[Link]:
    """Return the first links for a world of this shape; fewer if there are not so many."""
    if shape.spread:
        links = list({link.ready.node: link for link in reversed(links)}.values())[::-1]
    if shape.gpus is not None:
        links = _with_gpus(links, shape.gpus)
    return list(links[: shape.size])


def _with_gpus(links: Sequence[Link], needs: Needs) -> list[Link]:
    """Return those of these links whose ranks can have a suitable GPU each."""
    chosen: list[Link] = []
    for link in links:
        there = [other for other in chosen if other.ready.node == link.ready.node]
        if len(needs.suitable(_gpus([*there, link]))) > len(there):
            chosen.append(link)
    return chosen


def _by_host(links: Iterable[Link]) -> dict[str, list[Link]]:
    by_host: dict[str, list[Link]] = {}
    for link in links:
        by_host.setdefault(link.ready.node, []).append(link)
    return by_host


def _gpus(links: Iterable[Link]) -> list[Gpu]:
    """Return the GPUs of links on one host, in the links' order."""
    return list({gpu.uuid: gpu for link in links for gpu in link.gpus}.values())
