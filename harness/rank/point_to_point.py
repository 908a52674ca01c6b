"""What a rank sends to single ranks, and asks of them, in the default group.

gloo counts these messages among the collectives of a group. A stage in the middle of a pipeline has more of them than
the first and the last.
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any


class PointToPoint:
    """The count of one group's messages, by peer and tag."""

    def __init__(self, group: Any) -> None:
        self.group = group
        self.sent: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()
        self.within_collectives = 0
        """How many of them the group's own count of collectives contains."""

    def note(self, group: Any, counter: Counter[str], key: str, call: Any, arguments: tuple[Any, ...]) -> Any:
        if group is not self.group:
            return call(group, *arguments)
        before: int = group._get_sequence_number_for_group()
        work = call(group, *arguments)
        self.within_collectives += group._get_sequence_number_for_group() - before
        counter[key] += 1
        return work


#: The counted group of this process.
_counted: PointToPoint | None = None

#: In place of the peer, where a rank asks for a message from anyone.
ANY_RANK = "any"


def count(messages: PointToPoint) -> None:
    """Count the messages of a group from now on, and no longer those of another group."""
    global _counted
    _counted = messages
    _wrap(type(messages.group))


def stop() -> None:
    """Count no more, and let go of the group."""
    global _counted
    _counted = None


def within_collectives(group: Any) -> int:
    """Return how many messages this group's count of collectives contains, as far as they are counted."""
    return _counted.within_collectives if _counted is not None and _counted.group is group else 0


def _wrap(group_class: Any) -> None:
    """Wrap the methods through which all of torch's functions send and receive.

    The functions themselves stay: torch compares them by identity.
    """
    if hasattr(group_class.send, "__wrapped__"):
        return
    send, receive, receive_any = group_class.send, group_class.recv, group_class.recv_anysource

    @functools.wraps(send)
    def counted_send(group: Any, tensors: Any, dstRank: int, tag: int) -> Any:
        arguments = (tensors, dstRank, tag)
        if _counted is None:
            return send(group, *arguments)
        return _counted.note(group, _counted.sent, f"{dstRank}/{tag}", send, arguments)

    @functools.wraps(receive)
    def counted_receive(group: Any, tensors: Any, srcRank: int, tag: int) -> Any:
        arguments = (tensors, srcRank, tag)
        if _counted is None:
            return receive(group, *arguments)
        return _counted.note(group, _counted.asked, f"{srcRank}/{tag}", receive, arguments)

    @functools.wraps(receive_any)
    def counted_receive_any(group: Any, tensors: Any, tag: int) -> Any:
        if _counted is None:
            return receive_any(group, tensors, tag)
        return _counted.note(group, _counted.asked, f"{ANY_RANK}/{tag}", receive_any, (tensors, tag))

    group_class.send, group_class.recv, group_class.recv_anysource = (
        counted_send,
        counted_receive,
        counted_receive_any,
    )
