"""The actors of the launcher ``ray``, which keep ranks on the nodes of a cluster. Ray must be installed."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import ray
from everyrank.devices.cuda import CUDA
from everyrank.errors import MisuseError
from everyrank.launch import spawn
from everyrank.launch.local import LocalLauncher
from everyrank.launch.protocol import CannotLaunch, Shape
from everyrank.launch.remote import alike
from everyrank.launch.remote.door import KEEPER, knock
from everyrank.launch.remote.keeper import Invitation, RemoteKeeper, use_interface_of
from everyrank.launch.remote.link import Link
from everyrank.launch.remote.run_folder import RunFolder
from everyrank.wire.channel import Channel
from everyrank.wire.moved import Moved
from everyrank.wire.remote import Ready, ToRemoteKeeper
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

#: Variables that belong to a host, or to one process: the ranks on another host do not get them from here.
_OF_A_HOST = ("RAY_", "CUDA_", "LD_", "PYTEST_", "XDG_", "SSH_")

#: The placement groups of worlds have names that begin so: by them the runs on a cluster know each other.
_NAME = "everyrank-"

#: The exit code of an actor that could not start the parent of its ranks.
CANNOT_KEEP = 4

#: A node describes itself within this many seconds: Ray gives a worker 60 to register, and then starts another one.
_ANSWER = 150.0


class Group:
    """Actors that Ray starts together: it reserves a CPU for each, and perhaps a GPU, all at once or none."""

    def __init__(self, shape: Shape) -> None:
        self._gpus = int(shape.gpus is not None)  # of each actor
        strategy, bundle = "STRICT_SPREAD" if shape.spread else "PACK", {"CPU": 1, "GPU": 1}
        if not self._gpus:
            del bundle["GPU"]
        self._placement = placement_group(
            [bundle] * shape.size, strategy=strategy, name=f"{_NAME}{os.urandom(8).hex()}"
        )
        self._actors: list[Any] = []
        self._ends: list[Any] = []
        self.links: list[Link] = []
        self.since = time.monotonic()

    def has_room(self, within: float) -> bool:
        """Return whether Ray has reserved all CPUs, at the latest after this many seconds."""
        try:
            reserved: bool = self._placement.wait(within)
        except Exception as error:  # Ray raises nothing less if the process that keeps its groups has died
            raise MisuseError(f"the Ray cluster has lost what it had reserved for a world: {error}") from None
        self.since = time.monotonic()
        return reserved

    def start(self, invitation: Invitation, numbers: Sequence[int]) -> None:
        """Start the actors. Each knocks at the controller's door with its number."""
        actor: Any = ray.remote(KeeperActor)
        for bundle, number in enumerate(numbers):
            bundle_of_group = PlacementGroupSchedulingStrategy(self._placement, placement_group_bundle_index=bundle)
            options = {"num_cpus": 1, "num_gpus": self._gpus, "scheduling_strategy": bundle_of_group}
            self._actors.append(actor.options(**options).remote())
            arguments = (invitation.address, invitation.secret, invitation.folder, number, bool(self._gpus))
            self._ends.append(self._actors[-1].serve.remote(*arguments, _environment()))

    def has_ended(self) -> bool:
        """Return whether an actor has ended."""
        return bool(ray.wait(self._ends, timeout=0)[0])

    def why(self) -> str:
        """Return why an actor has ended, or that all are too slow."""
        ended, _ = ray.wait(self._ends, timeout=0)
        try:
            ray.get(ended)
        except Exception as error:
            return str(error)
        return "it ended" if ended else "it did not answer in time"

    def end(self) -> None:
        """End the actors, and give their CPUs back."""
        for actor in self._actors:
            ray.kill(actor)
        remove_placement_group(self._placement)


class KeeperActor:
    """An actor: its process keeps one rank of a world."""

    def serve(
        self,
        address: tuple[str, int],
        secret: bytes,
        folder: str,
        number: int,
        has_gpu: bool,
        environment: dict[str, str],
    ) -> int:
        """Keep ranks until the controller ends."""
        for name, value in environment.items():
            os.environ.setdefault(name, value)
        if not has_gpu:  # Ray leaves the node's setting as it is
            os.environ[CUDA.variable] = ""
        node = ray.get_runtime_context().get_node_id()
        invitation = Invitation((address[0], address[1]), secret, folder)
        # The process lives on if this fails: without ``with`` the controller would wait for its introduction.
        with knock(invitation.address, secret, (KEEPER, number)) as connection:
            use_interface_of(connection)
            own = RunFolder(folder, secret)
            ready = alike.describe(None, node, own.path, own.id, CUDA.found() if has_gpu else ())
            ready = msgspec.structs.replace(ready, host=f"{ready.host} (node {node[:8]})")
            control: Channel[ToRemoteKeeper] = Channel(connection, ToRemoteKeeper)
            raylet = int(os.environ["RAY_RAYLET_PID"]) if "RAY_RAYLET_PID" in os.environ else None
            try:
                keeper = RemoteKeeper(control, invitation, own, lambda: _start(own.path), engine=raylet)
            except CannotLaunch as problem:
                control.send(msgspec.structs.replace(ready, problem=str(problem)))
                own.leave(controller_is_gone=False)
                return CANNOT_KEEP
            return keeper.serve(ready)


def nodes_with(kind: str) -> list[int]:
    """Return how many CPUs or GPUs each node of the cluster has, without nodes that have none."""
    counts = [int(node["Resources"].get(kind, 0)) for node in ray.nodes() if node["Alive"]]
    return [count for count in counts if count]


def describe_nodes(root: Path, paths: Iterable[Path], working_dir: str) -> list[tuple[str, Ready]]:
    """Let each node of the cluster that has CPUs describe itself, with its files of the tests.

    Ray has copied the folder ``working_dir`` to each node, unless it is "".
    """
    task: Any = ray.remote(num_cpus=0, max_retries=0)(_describe)
    asked, arguments = {}, (str(root), [str(path) for path in paths], working_dir)
    for node in ray.nodes():
        if node["Alive"] and node["Resources"].get("CPU", 0):
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            name = f"the Ray node {node['NodeID'][:8]} on {node['NodeManagerAddress']}"
            asked[name] = task.options(scheduling_strategy=there).remote(*arguments)
    described = []
    for name, answer in asked.items():
        try:
            described.append((name, msgspec.convert(ray.get(answer, timeout=_ANSWER), Ready)))
        except ray.exceptions.GetTimeoutError:
            raise MisuseError(f"{name} did not answer within {_ANSWER:g} s") from None
        except ray.exceptions.RayError as error:
            raise MisuseError(f"{name} cannot keep ranks: {error}") from None
    return described


def _describe(root: str, paths: list[str], working_dir: str) -> Any:
    moved = Moved(working_dir, os.getcwd()) if working_dir else Moved("", "")
    files = alike.files(Path(moved.path(root)), [Path(moved.path(path)) for path in paths])
    return msgspec.to_builtins(msgspec.structs.replace(alike.describe(None, "", ""), files=files))


def worlds_wait() -> bool:
    """Return whether worlds of other runs wait for room on the cluster. Those of this run do not wait meanwhile."""
    groups = placement_group_table().values()
    return any(group["state"] == "PENDING" and group["name"].startswith(_NAME) for group in groups)


def _start(run_folder: str) -> LocalLauncher:
    return spawn.start_keeper(tempfile.mkdtemp(dir=run_folder))  # it removes the folder


def _environment() -> dict[str, str]:
    """Return the variables of this process that a rank has, too, unless its host sets them."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_OF_A_HOST)}
