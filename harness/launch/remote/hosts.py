"""Which keepers have the ranks of a world, and which GPUs these have: by the hosts of the keepers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from everyrank.devices.protocol import Gpu
from everyrank.launch.protocol import Shape
from everyrank.launch.remote.link import Link
from everyrank.resources.gpus.needs import Needs
from everyrank.resources.gpus.world_gpus import GpusOfHost, GpusOnHosts


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


def count_gpus(links: Sequence[Link]) -> int:
    """Return how many GPUs the hosts of these links have for ranks."""
    return sum(len(_gpus(there)) for there in _by_host(links).values())


def gpus_of_world(links: Sequence[Link], needs: Needs) -> GpusOnHosts:
    """Return the GPUs of the ranks that these links keep."""
    hosts = _by_host(links)
    gpus = {node: GpusOfHost(needs.suitable(_gpus(there))[: len(there)]) for node, there in hosts.items()}
    return GpusOnHosts([(gpus[link.ready.node], hosts[link.ready.node].index(link)) for link in links])


def _by_host(links: Iterable[Link]) -> dict[str, list[Link]]:
    found: dict[str, list[Link]] = {}
    for link in links:
        found.setdefault(link.ready.node, []).append(link)
    return found


def _gpus(links: Iterable[Link]) -> list[Gpu]:
    """Return the GPUs of links on one host, in the links' order."""
    return list({gpu.uuid: gpu for link in links for gpu in link.gpus}.values())
