"""A Ray cluster on loopback in a process of its own: ``python -m tests.ray_cluster``.

It has a head without room, and two nodes with two CPUs each. It prints its address, and obeys one line at a time:
``kill NODE`` ends a node as a power cut does, and starts another. It ends with its stdin.
"""

from __future__ import annotations

import sys
from typing import Any

#: Ray replaces 127.0.0.1 and localhost by an address of the host that others can reach.
LOOPBACK = "127.0.0.2"


def main() -> None:
    from ray.cluster_utils import Cluster

    cluster: Any = Cluster()
    cluster.add_node(num_cpus=0, node_ip_address=LOOPBACK, include_dashboard=False)
    nodes = [cluster.add_node(num_cpus=2, node_ip_address=LOOPBACK) for _ in range(2)]
    print(f"address {cluster.address}", flush=True)
    try:
        for line in sys.stdin:
            (node,) = [node for node in nodes if node.node_id == line.split()[1]]
            nodes.remove(node)
            cluster.remove_node(node, allow_graceful=False)
            nodes.append(cluster.add_node(num_cpus=2, node_ip_address=LOOPBACK))
            print("done", flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
