"""A Ray cluster on loopback in a process of its own: ``python -m tests.ray_cluster``.

It has a head without room, and two nodes with two CPUs each. It prints its address, and ends with its stdin.
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
    for _ in range(2):
        cluster.add_node(num_cpus=2, node_ip_address=LOOPBACK)
    print(f"address {cluster.address}", flush=True)
    try:
        sys.stdin.read()
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
