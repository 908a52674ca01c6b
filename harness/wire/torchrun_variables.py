"""The variables that torchrun sets for each of its processes: set here for ranks, read here if it has set them.

``sitecustomize`` in ``scripts/on_path`` reads one itself: it imports nothing in a process that is no rank.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from everyrank.wire.messages import Order

#: What torchrun sets, and a script that does without torchrun must set.
NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
#: What its agent sets in addition, for a script of which each run is to be recognised.
_NEEDED_IN_SCRIPTS = ("RANK", "WORLD_SIZE", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE")

_VALUES: dict[str, Callable[[Order], object]] = {
    "RANK": lambda order: order.rank,
    "LOCAL_RANK": lambda order: order.local_rank,
    "GROUP_RANK": lambda order: order.host,
    "ROLE_RANK": lambda order: order.rank,
    "WORLD_SIZE": lambda order: order.size,
    "LOCAL_WORLD_SIZE": lambda order: order.local_size,
    "GROUP_WORLD_SIZE": lambda order: order.hosts,
    "ROLE_WORLD_SIZE": lambda order: order.size,
    "ROLE_NAME": lambda order: "default",
    "MASTER_ADDR": lambda order: order.address,
    "MASTER_PORT": lambda order: order.port,
    "TORCHELASTIC_RUN_ID": lambda order: "everyrank",
    "TORCHELASTIC_RESTART_COUNT": lambda order: 0,
    "TORCHELASTIC_MAX_RESTARTS": lambda order: 0,
    "TORCHELASTIC_USE_AGENT_STORE": lambda order: False,
}

ALL = tuple(_VALUES)


def enter(order: Order) -> None:
    """Set the variables of an order. In a warm world most of them have their values from the test before."""
    for name, value_of in _VALUES.items():
        value = str(value_of(order))
        if os.environ.get(name) != value:
            os.environ[name] = value


def has_address_of(order: Order) -> bool:
    """Return whether the environment has the address that the order gave: a test may set another."""
    names = ("MASTER_ADDR", "MASTER_PORT")
    return all(os.environ.get(name) == str(_VALUES[name](order)) for name in names)


def missing() -> list[str]:
    """Return which needed variables are not set, or are empty."""
    return [name for name in NEEDED if not os.environ.get(name)]


def rank() -> int:
    return int(os.environ["RANK"])


def size() -> int:
    return int(os.environ["WORLD_SIZE"])


def address() -> tuple[str, int]:
    """Return where the processes meet."""
    return os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])


def node() -> str:
    """Return the name of the host: torchrun's number for it, or its own."""
    return os.environ.get("GROUP_RANK") or socket.gethostname()


def has_agent() -> bool:
    """Return whether torchrun's agent started this process. It has a store, and ends all if one has died."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def error_file() -> str:
    """Return the file that torchrun shows if this process fails."""
    return os.environ["TORCHELASTIC_ERROR_FILE"]


def run_of_script(variables: Mapping[str, str], agent: int) -> list[str]:
    """Return what no other run of a script has; nothing for a process that is no rank of one.

    Two runs in a row may have one port, and the agents of one run have no process in common.
    """
    if any(not variables.get(name) for name in _NEEDED_IN_SCRIPTS):
        return []
    alone = variables.get("LOCAL_WORLD_SIZE") == variables["WORLD_SIZE"]
    attempt = variables.get("TORCHELASTIC_RESTART_COUNT", "")
    return [variables["TORCHELASTIC_RUN_ID"], attempt, str(agent) if alone else variables["MASTER_PORT"]]


def without_rank(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a program that is no rank."""
    return {name: value for name, value in variables.items() if name != "RANK"}
