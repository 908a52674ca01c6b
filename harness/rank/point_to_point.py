"""What a rank sends to single ranks, and asks of them, in the default group.

gloo counts these messages among the collectives of a group. A stage in the middle of a pipeline has more of them than
the first and the last.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from everyrank.rank.group_calls import wrap


class PointToPoint:
    """The count of one group's messages, by peer and tag."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.sent: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()
        self.within_collectives = 0
        """How many of them the group's own count of collectives contains."""


#: The counted group of this process.
_counted: PointToPoint | None = None

#: In place of the peer, where a rank asks for a message from anyone.
ANY_RANK = "any"


def count(messages: PointToPoint) -> None:
    """Count the messages of a group from now on, and no longer those of another group."""
    global _counted
    _counted = messages
    for method, around in (("send", _send), ("recv", _receive), ("recv_anysource", _receive_any)):
        wrap(type(messages.group), method, around)


def stop() -> None:
    """Count no more, and let go of the group."""
    global _counted
    _counted = None


def within_collectives(group: Any) -> int:
    """Return how many messages this group's count of collectives contains, as far as they are counted."""
    return _counted.within_collectives if _counted is not None and _counted.group is group else 0


def _send(call: Any, group: Any, tensors: Any, dstRank: int, tag: int) -> Any:
    __tracebackhide__ = True
    return _count("sent", f"{dstRank}/{tag}", call, group, tensors, dstRank, tag)


def _receive(call: Any, group: Any, tensors: Any, srcRank: int, tag: int) -> Any:
    __tracebackhide__ = True
    return _count("asked", f"{srcRank}/{tag}", call, group, tensors, srcRank, tag)


def _receive_any(call: Any, group: Any, tensors: Any, tag: int) -> Any:
    __tracebackhide__ = True
    return _count("asked", f"{ANY_RANK}/{tag}", call, group, tensors, tag)


def _count(counter: str, key: str, call: Any, group: Any, *arguments: Any) -> Any:
    __tracebackhide__ = True
    messages = _counted
    if messages is None or group is not messages.group:
        return call(group, *arguments)
    before: int = group._get_sequence_number_for_group()
    work = call(group, *arguments)
    messages.within_collectives += group._get_sequence_number_for_group() - before
    getattr(messages, counter)[key] += 1
    return work
