"""A Ray cluster on loopback in a process of its own: ``python -m tests.ray_cluster``.

It has a head without room, and two nodes with two CPUs each. Ray counts two GPUs on the first, and one on the other.
Folders that are given as arguments have nothing of this host in them on the second node, which has no GPU then, and a
temp folder of its own. It prints its address and the temp folder of such a node, and ends with its stdin.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.on_hosts import apart_from

#: Ray replaces 127.0.0.1 and localhost by an address of the host that others can reach.
LOOPBACK = "127.0.0.2"
OTHER_LOOPBACK = "127.0.0.3"


def main() -> None:
    from ray.cluster_utils import Cluster

    cluster: Any = Cluster()
    # Each of these would be one more interpreter: nothing here is scaled, and ranks print through everyrank.
    without: dict[str, Any] = {"no_monitor": True, "include_log_monitor": False, "include_dashboard": False}
    cluster.add_node(num_cpus=0, node_ip_address=LOOPBACK, **without)
    apart, temp = None, tempfile.TemporaryDirectory(prefix="node-")
    for gpus in [2] if sys.argv[1:] else [2, 1]:
        cluster.add_node(num_cpus=2, num_gpus=gpus, node_ip_address=LOOPBACK, **without)
    try:
        if sys.argv[1:]:
            apart = _start_apart(cluster.address, sys.argv[1:], temp.name)
            _wait_for_nodes(cluster.address, apart)
        print(f"address {cluster.address}", flush=True)
        print(f"temp {temp.name}", flush=True)
        sys.stdin.read()
    finally:
        if apart is not None:
            apart.terminate()
            apart.wait(60)
        cluster.shutdown()
        temp.cleanup()


def _start_apart(address: str, folders: list[str], temp: str) -> subprocess.Popen[bytes]:
    """Start a node to which these folders are empty, as on another machine."""
    node = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--address={address}", "--num-cpus=2", "--block"]
    node.append(f"--node-ip-address={OTHER_LOOPBACK}")
    command = [*apart_from(*map(Path, folders)), *node]
    environment = {**os.environ, "TMPDIR": temp}
    return subprocess.Popen(command, env=environment, stdout=sys.stderr, stdin=subprocess.DEVNULL)


def _wait_for_nodes(address: str, apart: subprocess.Popen[bytes]) -> None:
    import ray

    ray.init(address=address, log_to_driver=False)
    while ray.cluster_resources().get("CPU", 0) < 4:
        if apart.poll() is not None:
            raise SystemExit("the second node did not start")
        time.sleep(0.1)
    ray.shutdown()


if __name__ == "__main__":
    main()
