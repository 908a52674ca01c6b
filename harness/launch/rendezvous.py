"""The address and the port at which the ranks of a test find rank 0."""

from __future__ import annotations

import contextlib
import socket
import sys
from collections.abc import Iterator

LOOPBACK = "127.0.0.1"


@contextlib.contextmanager
def reserved_port() -> Iterator[tuple[str, int]]:
    """Reserve a port of this host that rank 0 can listen on and that the system gives to no other process.

    The port is bound here without a listener. So the kernel does not choose it for a process that asks for any free
    port, but torch's store, which names the port and allows the reuse of addresses, can listen on it. This takes
    microseconds.
    """
    kind = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET  # as torch's store binds it
    with socket.socket(kind) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if kind == socket.AF_INET6:
            holder.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        holder.bind(("", 0))
        port: int = holder.getsockname()[1]
        if sys.platform != "linux":
            holder.close()  # other systems refuse a bound port even if both sides allow its reuse
        yield LOOPBACK, port
