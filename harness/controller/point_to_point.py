"""Which messages between two ranks one of them has sent, or asked for, and the other has not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from everyrank.rank.point_to_point import ANY_RANK
from everyrank.wire.messages import Record


def not_received(records: Mapping[int, Record]) -> list[str]:
    """Return the messages of the kept group that a later test could meet, a line for each pair of ranks and tag."""
    on_the_way: Counter[tuple[int, int, str]] = Counter()
    from_anyone: Counter[tuple[int, str]] = Counter()
    for rank, record in records.items():
        for key, count in record.sent.items():
            peer, _, tag = key.partition("/")
            on_the_way[rank, int(peer), tag] += count
        for key, count in record.asked.items():
            peer, _, tag = key.partition("/")
            if peer == ANY_RANK:
                from_anyone[rank, tag] += count
            else:
                on_the_way[int(peer), rank, tag] -= count
    for (sender, receiver, tag), count in sorted(on_the_way.items()):
        taken = min(max(count, 0), from_anyone[receiver, tag])
        on_the_way[sender, receiver, tag] -= taken
        from_anyone[receiver, tag] -= taken
    lines = []
    for (sender, receiver, tag), count in sorted(on_the_way.items()):
        tagged = "" if tag == "0" else f" with the tag {tag}"
        if count > 0:
            lines.append(f"rank {sender} sent rank {receiver} a message{tagged} that it did not receive")
        elif count < 0:
            lines.append(f"rank {receiver} asked rank {sender} for a message{tagged} that it did not send")
    lines += [f"rank {rank} asked for a message that no rank sent" for (rank, _), left in from_anyone.items() if left]
    return lines
