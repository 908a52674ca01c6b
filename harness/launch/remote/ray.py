"""The launcher ``ray``: a pytest here, and its ranks wherever Ray has room.

Each rank has an actor, which takes one CPU of the cluster, and one GPU if its test needs one. The actor's process
is a remote keeper: it starts the rank as a clean interpreter, and ends with this pytest. Actors are kept for the
next worlds, until another pytest waits for their CPUs. The nodes see the files of the tests, or Ray copies these
to them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import random
import shlex
import shutil
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from everyrank.devices.cuda import CUDA
from everyrank.errors import MisuseError
from everyrank.launch.protocol import LaunchContext, Launcher, Member, Shape
from everyrank.launch.remote import alike, run_folder
from everyrank.launch.remote.door import KEEPER, Door, new_secret
from everyrank.launch.remote.hosts import RemoteHosts, choose
from everyrank.launch.remote.keeper import Invitation
from everyrank.launch.remote.launcher import RemoteLauncher
from everyrank.launch.remote.link import Link, RemoteSeat, introduced
from everyrank.model.counts import count
from everyrank.patience import Patience
from everyrank.resources import holders, leases
from everyrank.wire.keepers import Preload
from everyrank.wire.remote import Ready

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from everyrank.launch.remote.ray_actors import Group

#: The cluster must have room for the actors of a world within this many seconds.
_ROOM = 600.0
#: Without room for this many seconds, our own idle actors end.
_SOON = 2.0
#: A wait for room that is longer than this many seconds is reported.
_PATIENCE = 10.0
#: Others may have the CPUs of our idle actors after this many seconds.
_TURN = 5.0
#: We look this often whether others wait, in seconds.
_LOOK = 1.0
#: The cluster must answer within this many seconds.
_REACH = 10.0
#: The names of Ray's sockets are 66 bytes longer than the temp folder, and a socket may have 107.
_LONG = 40
#: The process of an actor starts within this many seconds.
_START = 120.0

#: The address of a cluster of our own: no other host reaches it.
_LOOPBACK = "127.0.0.1"


def configure(config: pytest.Config) -> Member | None:
    """Check what can be checked before the tests are collected."""
    try:
        import ray  # noqa: F401
    except ImportError:
        raise pytest.UsageError("--launcher=ray: Ray is not installed: pip install ray") from None
    _working_dir(config)
    workers = getattr(config.option, "numprocesses", None) or hasattr(config, "workerinput")
    if workers and not _given_address(config):
        raise pytest.UsageError(
            "--launcher=ray: with -n, all workers use one cluster: name it by --ray-address or RAY_ADDRESS"
        )
    if config.getoption("usepdb", False) or config.getoption("trace", False):
        raise pytest.UsageError("--launcher=ray: a debugger needs the ranks on this host: use --launcher=fork")
    return None


def launch(context: LaunchContext) -> Launcher:
    """Connect to the cluster. Actors are started when a world needs them."""
    config = context.session.config
    working_dir = _working_dir(config)
    import ray

    secret, folder = new_secret(), context.new_folder()
    run_folder.mark(folder, secret)
    guard = run_folder.Guard(folder)  # forked before Ray has threads in this process
    try:
        _connect(_given_address(config), working_dir)
        own_ready = alike.describe(context.session, "", folder)
        if _given_address(config):
            _check_nodes(context.session, own_ready, working_dir)
    except BaseException:
        guard.dismiss()
        shutil.rmtree(folder, ignore_errors=True)
        ray.shutdown()
        raise
    door = Door(ray.util.get_node_ip_address(), secret)
    invitation = Invitation(door.address, secret, folder)
    launcher = RayLauncher(config, invitation, door, own_ready, context.print_live, guard)
    if working_dir:
        launcher.hosts.working_dir, launcher.hosts.share_files = working_dir, False
    return launcher


def _check_nodes(session: pytest.Session, own_ready: Ready, working_dir: str) -> None:
    """Check, before the first test, that each node of the cluster has what its ranks will need."""
    from everyrank.launch.remote import ray_actors

    nodes = ray_actors.describe_nodes(session.config.rootpath, alike.paths(session), working_dir)
    alike.check(own_ready, nodes)
    for name, ready in nodes:
        hint = "" if working_dir else "; to copy them to each node, give --ray-working-dir=FOLDER"
        alike.check_files(own_ready.files, name, ready.files, hint)


def _given_address(config: pytest.Config) -> str | None:
    return config.getoption("ray_address") or os.environ.get("RAY_ADDRESS")


def _working_dir(config: pytest.Config) -> str:
    """Return the folder that Ray is to copy to each node, or ""."""
    option = config.getoption("ray_working_dir")
    if not option:
        return ""
    folder = Path(os.path.abspath(config.invocation_params.dir / option))
    if not folder.is_dir():
        raise pytest.UsageError(f"--ray-working-dir: there is no folder {folder}")
    if not config.rootpath.is_relative_to(folder):
        raise pytest.UsageError(f"--ray-working-dir: {folder} does not contain pytest's rootdir {config.rootpath}")
    return str(folder)


def _connect(address: str | None, working_dir: str) -> None:
    import ray

    options: dict[str, Any] = {"address": address}
    if not address:  # a cluster of our own, on this host alone, also where another one runs
        options = {
            "address": "local",
            "_node_ip_address": _LOOPBACK,
            "include_dashboard": False,
            "num_cpus": leases.capacity(),
        }
        if len(tempfile.gettempdir()) > _LONG and "RAY_TMPDIR" not in os.environ:
            options["_temp_dir"] = "/tmp/ray"  # Ray's own choice without TMPDIR
    if working_dir:  # Ray leaves out what git ignores
        options["runtime_env"] = {"working_dir": working_dir, "excludes": [".git"], **_interpreter()}
    try:
        if address and address.rpartition(":")[2].isdecimal() and "//" not in address:
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), _REACH).close()  # Ray itself would try for minutes
        with _drawn_anew(), contextlib.nullcontext() if address else _on_loopback():
            ray.init(logging_level=logging.ERROR, log_to_driver=False, configure_logging=False, **options)
    except Exception as error:  # Ray raises nothing less if its processes have started too late
        cluster = f"the Ray cluster at {address}" if address else "a Ray cluster on this host"
        raise MisuseError(f"cannot connect to {cluster}: {error}") from None


def _interpreter() -> dict[str, str]:
    """Name this process's interpreter for the workers of a copied folder, where the name has to be quoted.

    Ray gives these workers' command to a shell, with its own interpreter as it is: a space in the path of the
    environment ends the name, each worker dies at its start, and Ray starts it again without a word.
    """
    quoted = shlex.quote(sys.executable)
    return {} if quoted == sys.executable else {"py_executable": quoted}


@contextlib.contextmanager
def _drawn_anew() -> Iterator[None]:
    """Let random numbers differ from those of other processes.

    Ray draws the name under which a driver subscribes to errors, and ports, from the module ``random``, which plugins
    seed alike in all workers. Drivers of one name poll the cluster's head without a pause
    (docs/findings/ray-seeded-random.md).
    """
    state = random.getstate()
    random.seed()
    try:
        yield
    finally:
        random.setstate(state)


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Let Ray listen on loopback alone.

    On Linux it takes 127.0.0.1 for the host's own address, and then listens on all of them. It does not where it
    starts no clusters of several hosts, as on macOS.
    """
    from ray._private import ray_constants

    several = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = several


class RayHosts(RemoteHosts):
    """The nodes of a cluster, which may get more actors than there are now."""

    several = True

    def count_gpus(self) -> int:
        from everyrank.launch.remote import ray_actors

        return sum(ray_actors.nodes_with("GPU"))


class RayLauncher(RemoteLauncher):
    """Ranks of Ray's actors. A world takes the actors that are there, and new ones for the rest."""

    def __init__(
        self,
        config: pytest.Config,
        invitation: Invitation,
        door: Door,
        own_ready: Ready,
        live: bool,
        guard: run_folder.Guard,
    ) -> None:
        super().__init__("ray", invitation.folder, door, [], live, forks=False)
        self.keeper_title = "Ray cluster"
        self.hosts = RayHosts(invitation.folder, self.links)
        self._config = config
        self._invitation = invitation
        self._own_ready = own_ready
        self._guard = guard
        self._imports: Preload | None = None  # what each actor imports before it starts ranks
        self._groups: list[Group] = []
        self._actors = 0
        self._looked_at = 0.0
        self._others_since = float("inf")

    def cannot_start(self, shape: Shape) -> str:
        from everyrank.launch.remote import ray_actors

        cpus, size = ray_actors.nodes_with("CPU"), shape.size
        if not cpus:
            return ""  # all nodes are gone: that is no need of the test, and a skip would be green
        if size > sum(cpus):
            return f"needs {Shape(size)}, the Ray cluster has {count(sum(cpus), 'CPU')}"
        if shape.gpus is not None:
            if shape.gpus.type != CUDA.name:
                return f"needs {shape.gpus.count}, and Ray is asked only for GPUs of CUDA"
            if shape.gpus.kind:
                return f"needs {count(size, 'GPU')} {shape.gpus.kind}, and Ray takes no such request"
            gpus = ray_actors.nodes_with("GPU")
            if size > sum(gpus):
                return f"needs {shape.gpus.count}, the Ray cluster has {sum(gpus)}"
            if shape.spread and size > len(gpus):
                return f"needs {size} hosts with GPUs, the Ray cluster has {len(gpus)}"
        if shape.spread and size > len(cpus):
            return f"needs {size} hosts, the Ray cluster has {len(cpus)} with CPUs"
        return ""

    def fit(self, shape: Shape) -> list[Link]:
        return [link for link in self.alive() if bool(link.gpus) == (shape.gpus is not None)]

    def has_room(self, shape: Shape) -> bool:
        self.catch_up()  # an actor that died between two tests is replaced: no test is affected
        missing = self._missing(shape)
        return not missing.size or self._grow(missing, _SOON)

    def start(self, shape: Shape, leases: Sequence[int] = ()) -> list[RemoteSeat]:
        from everyrank.launch.remote import ray_actors

        missing = self._missing(shape)
        if missing.size and not ray_actors.nodes_with("CPU"):
            raise MisuseError("no node of the Ray cluster is alive any more")
        if missing.size and not self._grow(missing, _ROOM):
            raise MisuseError(f"{self._no_room(missing)} within {_ROOM:g} s")
        self.settle()
        return super().start(shape, leases)

    def preload(self, order: Preload) -> None:
        self._imports = order
        super().preload(order)

    def _missing(self, shape: Shape) -> Shape:
        """Return the actors that must be started for a world; with ``spread``, all of them together."""
        missing = shape.size - len(choose(self.fit(shape), shape))
        return dataclasses.replace(shape, size=shape.size if shape.spread and missing else missing)

    def is_wanted(self) -> bool:
        now = time.monotonic()
        if self._groups and now >= self._looked_at + _LOOK:
            from everyrank.launch.remote import ray_actors

            self._looked_at = now
            self._others_since = min(self._others_since, now) if ray_actors.worlds_wait() else float("inf")
        return bool(self._groups) and now - max(self._others_since, self._groups[-1].since) >= _TURN

    def give_back(self) -> None:
        for group in self._groups:
            self.remove(group.links, "gave its CPU back")
            group.end()
        self._groups.clear()
        self._others_since = float("inf")

    def _grow(self, shape: Shape, within: float) -> bool:
        """Start the actors of this shape, if Ray has room for all of them at once within this many seconds."""
        from everyrank.launch.remote.ray_actors import Group

        group = Group(shape)
        try:
            if not group.has_room(min(within, _PATIENCE)):
                if within <= _PATIENCE:
                    group.end()
                    return False
                holders.print_line(self._config, f"{self._no_room(shape)} yet: a world waits")
                if not group.has_room(within - _PATIENCE):
                    group.end()
                    return False
            numbers = range(self._actors, self._actors + shape.size)
            self._actors += shape.size
            group.start(self._invitation, numbers)
            came = self.door.admit({(KEEPER, number) for number in numbers}, Patience(_START), group.has_ended)
            for number in numbers:
                if (KEEPER, number) not in came:
                    raise MisuseError(f"an actor of Ray did not start: {group.why()}")
                group.links.append(self._join(number, came[KEEPER, number], shape))
        except BaseException:
            group.end()
            raise
        self._groups.append(group)
        return True

    def _join(self, number: int, connection: socket.socket, shape: Shape) -> Link:
        channel, ready = introduced(f"Ray's actor {number}", connection)
        link = Link(f"Ray's actor {number} on {ready.host}", channel, ready, self._own_ready.boot)
        alike.check(self._own_ready, [(link.name, ready)])
        if shape.gpus is not None and not link.gpus:
            raise MisuseError(f"{link.name} cannot use the GPU that Ray gave to it: its torch finds none")
        self.add(link)
        if self._imports is not None:
            self.let_import(link, self._imports)
        return link

    def _no_room(self, shape: Shape) -> str:
        import ray

        kinds = ("CPU",) if shape.gpus is None else ("CPU", "GPU")
        free, total = ray.available_resources(), ray.cluster_resources()
        rooms = [f"{free.get(kind, 0):.0f} of its {total.get(kind, 0):.0f} {kind}s" for kind in kinds]
        return f"the Ray cluster has no room for {shape} ({' and '.join(rooms)} are free)"

    def close(self) -> None:
        import ray

        super().close()
        self.say_goodbye(0)
        for link in self.links:
            link.channel.close()
        for group in self._groups:
            group.end()
        ray.shutdown()
        self._guard.dismiss()
