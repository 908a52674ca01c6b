"""The launcher ``ray``: one pytest here, and its ranks wherever Ray has room.

Each rank has an actor, which takes one CPU of the cluster. The actor's process is a remote keeper: it starts the rank
as a clean interpreter, and ends with this pytest. Actors are kept for the next worlds. All hosts must share the
folder of the tests and the run's folder.
"""

from __future__ import annotations

import logging
import os
import socket
import tempfile
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from everyrank.errors import MisuseError
from everyrank.launch import spawn
from everyrank.launch.local import LocalLauncher
from everyrank.launch.protocol import LaunchContext, Launcher, Member
from everyrank.launch.remote import alike
from everyrank.launch.remote.door import KEEPER, Door, knock, new_secret
from everyrank.launch.remote.keeper import Invitation, RemoteKeeper, use_interface_of
from everyrank.launch.remote.launcher import RemoteLauncher, ranks
from everyrank.launch.remote.link import Link, RemoteSeat
from everyrank.resources import leases
from everyrank.wire.channel import Channel
from everyrank.wire.remote import FromRemoteKeeper, Ready, ToRemoteKeeper

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: The cluster must have room for the actors of a world within this many seconds.
_ROOM = 120.0
#: The cluster must answer within this many seconds.
_REACH = 10.0
#: The process of an actor starts within this many seconds.
_START = 120.0

#: Variables that belong to a host, or to one process: the ranks on another host do not get them from here.
_OF_A_HOST = ("RAY_", "CUDA_", "LD_", "PYTEST_", "XDG_", "SSH_")


def configure(config: pytest.Config) -> Member | None:
    """Check what can be checked before the tests are collected."""
    try:
        import ray  # noqa: F401
    except ImportError:
        raise pytest.UsageError("--launcher=ray: Ray is not installed: pip install 'everyrank[ray]'") from None
    if getattr(config.option, "numprocesses", None) or hasattr(config, "workerinput"):
        raise pytest.UsageError("--launcher=ray: one pytest uses the cluster: leave out -n")
    if config.getoption("usepdb", False) or config.getoption("trace", False):
        raise pytest.UsageError("--launcher=ray: a debugger needs the ranks on this host: use --launcher=fork")
    return None


def launch(context: LaunchContext) -> Launcher:
    """Connect to the cluster. Actors are started when a world needs them."""
    config = context.session.config
    _connect(config.getoption("ray_address"))
    secret, folder = new_secret(), context.new_folder()
    alike.mark(folder, secret)
    ours = alike.describe(None, "", folder, secret)
    import ray

    return RayLauncher(folder, Door(ray.util.get_node_ip_address(), secret), secret, ours, context.print_live)


def _connect(address: str | None) -> None:
    import ray

    given = address or os.environ.get("RAY_ADDRESS")
    options: dict[str, Any] = {"address": given}
    if not given:  # a cluster of this host alone
        options = {"_node_ip_address": "127.0.0.1", "include_dashboard": False, "num_cpus": leases.capacity()}
    try:
        if given and given.rpartition(":")[2].isdecimal() and "//" not in given:
            host, _, port = given.rpartition(":")
            socket.create_connection((host, int(port)), _REACH).close()  # Ray itself would try for minutes
        ray.init(logging_level=logging.ERROR, log_to_driver=False, configure_logging=False, **options)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        cluster = f"the Ray cluster at {given}" if given else "a Ray cluster on this host"
        raise MisuseError(f"cannot connect to {cluster}: {error}") from None


class RayLauncher(RemoteLauncher):
    """Ranks of Ray's actors. A world takes the actors that are there, and new ones for the rest."""

    def __init__(self, folder: str, door: Door, secret: bytes, ours: Ready, live: bool) -> None:
        super().__init__("ray", folder, door, [], live, forks=False)
        self.keeper_title = "Ray cluster"
        self.spans_hosts = True
        self._invitation = Invitation(door.address, secret, folder)
        self._ours = ours
        self._actors: dict[int, Any] = {}
        self._groups: list[Any] = []

    def cannot_start(self, size: int) -> str:
        import ray

        cpus = int(ray.cluster_resources().get("CPU", 0))
        return f"needs {ranks(size)}, the Ray cluster has {cpus} CPUs" if size > cpus else ""

    def start(self, size: int, leases: Sequence[int] = ()) -> list[RemoteSeat]:
        missing = size - len(self.alive())
        if missing > 0:
            self._grow(missing)
        return super().start(size, leases)

    def _grow(self, count: int) -> None:
        """Start so many actors, where Ray has room for all of them at once."""
        import ray
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        group = placement_group([{"CPU": 1}] * count, strategy="PACK")
        self._groups.append(group)
        if not group.wait(_ROOM):
            free, total = (int(found.get("CPU", 0)) for found in (ray.available_resources(), ray.cluster_resources()))
            raise MisuseError(
                f"the Ray cluster had no room for {ranks(count)} within {_ROOM:g} s: "
                f"{free} of its {total} CPUs are free"
            )
        actor = ray.remote(Keeper)
        numbers = range(len(self._actors), len(self._actors) + count)
        ends = []
        for bundle, number in enumerate(numbers):
            bundle_of_group = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
            self._actors[number] = actor.options(num_cpus=1, scheduling_strategy=bundle_of_group).remote()
            arguments = (self._invitation.address, self._invitation.secret, self._invitation.folder, number)
            ends.append(self._actors[number].serve.remote(*arguments, _environment()))
        came = self.door.admit({(KEEPER, number) for number in numbers}, _START, _any_of(ends))
        for number in numbers:
            if (KEEPER, number) not in came:
                raise MisuseError(f"Ray's actor {number} did not start: {_why(ends[number - numbers[0]])}")
            self._join(number, came[KEEPER, number])

    def _join(self, number: int, connection: socket.socket) -> None:
        channel: Channel[Any] = Channel(connection, FromRemoteKeeper)
        ready = channel.receive()
        link = Link(f"Ray's actor {number} on {ready.host}", channel, ready, self._ours.boot)
        alike.check(self._ours, [link], self.folder)
        self.add(link)

    def close(self) -> None:
        import ray
        from ray.util.placement_group import remove_placement_group

        super().close()
        self.say_goodbye(0)
        for link in self.links:
            link.channel.close()
        for actor in self._actors.values():
            ray.kill(actor)
        for group in self._groups:
            remove_placement_group(group)
        ray.shutdown()


class Keeper:
    """An actor: its process keeps one rank of a world."""

    def serve(
        self, address: tuple[str, int], secret: bytes, folder: str, number: int, environment: dict[str, str]
    ) -> int:
        """Keep ranks until the controller ends."""
        import ray

        for name, value in environment.items():
            os.environ.setdefault(name, value)
        node = ray.get_runtime_context().get_node_id()
        invitation = Invitation((address[0], address[1]), secret, folder)
        connection = knock(invitation.address, secret, (KEEPER, number))
        use_interface_of(connection)
        ready = alike.describe(None, node, folder, secret)
        ready = msgspec.structs.replace(ready, host=f"{ready.host} (node {node[:8]})")
        control: Channel[ToRemoteKeeper] = Channel(connection, ToRemoteKeeper)
        raylet = os.environ.get("RAY_RAYLET_PID")
        keeper = RemoteKeeper(control, invitation, _start, engine=int(raylet) if raylet else None)
        with connection:  # the process may live longer
            return keeper.serve(ready)


def _start() -> LocalLauncher:
    return spawn.start_keeper(tempfile.mkdtemp(prefix="everyrank-"))  # it removes the folder


def _environment() -> dict[str, str]:
    """Return the variables of this process that a rank has, too, unless its host sets them."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_OF_A_HOST)}


def _any_of(ends: list[Any]) -> Callable[[], bool]:
    import ray

    return lambda: bool(ray.wait(ends, timeout=0)[0])


def _why(end: Any) -> str:
    """Return why an actor has ended, or that it has not."""
    import ray

    try:
        ray.get(end, timeout=0)
    except ray.exceptions.GetTimeoutError:
        return f"it did not answer within {_START:g} s"
    except Exception as error:
        return str(error)
    return "it ended"
