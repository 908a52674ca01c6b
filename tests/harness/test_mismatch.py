"""A rank that gloo aborts, since another rank's tensor has another size: who called what, and no blame."""

from __future__ import annotations

import signal

from everyrank.verdict.rules import Fate, Fates, blamed, judge
from everyrank.wire.messages import Collective, Phase, Record

from tests.inner import Project

WORDS = "what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 10 vs 6."
ECHO = "RuntimeError: [/src/gloo/pair.cc:534] Connection closed by peer [127.0.0.1]:4711"


def lost_its_peer(rank: int, size: int) -> Fate:
    collective = Collective("0", 1, "all_gather", f"({size},) Float")
    return Fate(rank, Record("", [Phase("call", "failed", {}, 1.0, ECHO, collective=collective)], [], [], [], None))


def test_the_other_ranks_state_what_they_called_and_nobody_is_blamed() -> None:
    aborted = Fate(2, status=int(signal.SIGABRT), ended_at=1.0, phase="call", last_words=WORDS)
    fates = Fates([lost_its_peer(0, 3), lost_its_peer(1, 5), aborted])
    assert judge(fates).headline.splitlines() == [
        "data of another size than expected came to rank 2; rank 0 last called all_gather with (3,) Float; "
        "rank 1 last called all_gather with (5,) Float",
        "rank 2 of 3 was killed by SIGABRT in call",
    ]
    assert blamed(fates).ranks == ()


def test_shapes_of_a_real_mismatch_are_in_the_first_line(project: Project) -> None:
    project.write(
        "test_inner.py",
        """
        import pytest, torch
        import torch.distributed as dist

        @pytest.mark.world(2)
        def test_shapes(process_group, world):
            dist.all_reduce(torch.ones(2 + 100 * world.rank))
        """,
    )
    first, second, *_ = project.run()["test_shapes"].text.splitlines()
    assert first == (
        "data of another size than expected came to rank 0; rank 1 last called all_reduce with (102,) Float"
    )
    assert second == "rank 0 of 2 was killed by SIGABRT in call"
