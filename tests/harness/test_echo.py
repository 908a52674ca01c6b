"""Which rank is named if another lost its connection, as everyrank.verdict.echo decides it."""

from __future__ import annotations

import pytest
from everyrank.verdict.echo import left_early
from everyrank.wire.messages import Phase

GLOO = "RuntimeError: [/src/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4711"


@pytest.mark.parametrize(
    ("early", "brief", "text"),
    [
        ([1], GLOO, "rank 1 ended its test, or destroyed its group, before rank 0 had what it waits for at a.py:3\n"),
        (
            [1, 2],
            GLOO,
            "ranks 1,2 ended their test, or destroyed their group, before rank 0 had what it waits for at a.py:3\n",
        ),
        ([], GLOO, ""),
        ([1], "ConnectionResetError: [Errno 104] Connection reset by peer", ""),  # of the user's own socket
        ([1], "ValueError: no file in /gloo/", ""),
    ],
)
def test_ranks_that_left_early_are_named_if_a_group_lost_its_connection(
    early: list[int], brief: str, text: str
) -> None:
    assert left_early(early, [0], Phase("call", "failed", {}, 1.0, brief, location="a.py:3")) == text
