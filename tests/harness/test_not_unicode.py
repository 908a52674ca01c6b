"""Paths and texts that are not valid Unicode: they come through the wire as they are, and no verdict changes."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

import pytest
from everyrank.reports.runfile.read import read
from everyrank.wire.channel import Channel
from everyrank.wire.messages import Collect, FromRank, Meet, Met, Order, Record, ToRank
from everyrank.wire.remote import FromRemoteKeeper, Stacks, StartSeat, ToRemoteKeeper

from tests.engines import elsewhere, run_under
from tests.inner import Project

RAW = os.fsdecode(b"caf\xe9")
#: Texts that UTF-8 cannot hold, and others.
TEXTS = ("plain", RAW, "\ud800", "\udfff", "\N{SNOWMAN}", "\N{DNA DOUBLE HELIX}")

SOURCE = """
    import os, pathlib, signal, sys, threading
    import pytest
    import torch
    import torch.distributed as dist

    RAW = os.fsdecode(b"caf\\xe9")

    @pytest.mark.world(2)
    def test_meets(world, tmp_path):
        os.environ["A_VARIABLE"] = RAW
        world.all_agree(RAW)
        assert pathlib.Path(__file__).parent == pathlib.Path.cwd()

    @pytest.mark.world(2)
    def test_group(process_group):
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total == 2

    @pytest.mark.world(2)
    def test_own_group(world):
        dist.init_process_group("gloo", init_method=world.init_method, rank=world.rank, world_size=world.size)
        dist.barrier()
        dist.destroy_process_group()

    @pytest.mark.world(2)
    @pytest.mark.parametrize("text", [RAW, b"\\xff"], ids=[RAW, None])
    def test_parameters(world, text):
        assert text in (RAW, b"\\xff")

    @pytest.mark.world(2)
    def test_prints(world):
        sys.stdout.buffer.write(b"raw \\xff\\n")
        print(os.getcwd())
        raise ValueError(RAW)

    @pytest.mark.world(2)
    def test_skips(world):
        pytest.skip(RAW)

    @pytest.mark.world(2)
    def test_dies(world):
        if world.rank == 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        world.barrier()

    @pytest.mark.world(2)
    def test_deadlock(process_group, world):
        if world.rank == 1:
            dist.all_reduce(torch.ones(1))
"""


@pytest.mark.parametrize("launcher", ["fork", elsewhere("spawn"), elsewhere("torchrun")])
def test_no_verdict_changes_by_a_name_that_is_not_unicode(project: Project, launcher: str) -> None:
    project.folder = project.folder / os.fsdecode(b"project-\xff")
    project.temp = project.folder / os.fsdecode(b"tmp-\xe4")
    project.temp.mkdir(parents=True)
    plugin = "everyrank_inner_reporter.py"
    project.write(plugin, (project.folder.parent / plugin).read_text())
    name = os.fsdecode(b"test_\xe9.py")
    project.write(name, SOURCE)
    inner = run_under(launcher, project, "--run-file", "run.jsonl")
    failed = {"test_prints", "test_dies", "test_deadlock"}
    assert {test: outcome for test, outcome in inner.outcomes().items() if outcome != "passed"} == {
        **dict.fromkeys(failed, "failed"),
        "test_skips": "skipped",
    }
    assert len(inner.tests) == 9
    assert {nodeid.partition("::")[0] for nodeid in inner.tests} == {name}
    inner.check("test_prints", "failed", "ValueError: caf\\udce9", "^on ranks 0,1\n")
    inner.check("test_skips", "skipped", "Skipped: caf")
    inner.check("test_dies", "failed", "^rank 1 of 2 was killed by SIGSEGV in call", "test_\\udce9.py")
    inner.check("test_deadlock", "failed", "^rank 0 ended its test without reaching this all_reduce")
    outcomes = {case.id.rpartition("::")[2]: case.outcome for case in read(project.folder / "run.jsonl").cases}
    assert {test for test, outcome in outcomes.items() if outcome not in ("pass", "skipped")} == failed
    assert len(outcomes) == 9


@pytest.mark.parametrize(
    ("message", "there"),
    [
        (Met(list(TEXTS), ["b"], [RAW], [1]), ToRank),
        (Meet(RAW, "", RAW), FromRank),
        (Collect([RAW], {RAW: [RAW, 1, None, 0.5, True]}, RAW, RAW, [RAW], {"A": RAW}, {}, ""), ToRank),
        (Stacks(7, {0: (RAW, "", (RAW, "f"), [(1, RAW, "text")]), 3: ("", "stopped", (), [])}), FromRemoteKeeper),
        (StartSeat(1, RAW, True), ToRemoteKeeper),
        (Record(RAW, [], [], [], [RAW], None, notes={"a": {"b": [RAW, b"\xff"]}}), FromRank),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_message_arrives_as_it_was_sent(message: Any, there: Any) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sending, receiving = Channel[Any](ours, Order), Channel[Any](theirs, there)
        for _ in range(2):
            sending.send(message)
        assert [receiving.receive(), receiving.receive()] == [message, message]
        with open(os.devnull) as file:
            sending.send(message, [file.fileno()])
            found, (fd,) = receiving.receive_with_fds(1)
        os.close(fd)
        assert found == message
        assert json.dumps(str(found)) == json.dumps(str(message))


def test_what_fails_while_a_record_is_made_is_shown(project: Project) -> None:
    project.write(
        "test_inner.py",
        """
        import pytest
        from everyrank.rank.rank import Rank

        def fails(*_):
            raise LookupError("no record today")

        @pytest.mark.world(2)
        def test_it(world):
            if world.rank == 1:
                Rank._record = fails
        """,
    )
    inner = project.run()
    inner.check(
        "test_it",
        "failed",
        "^rank 1 of 2 left without a record (exit code 1) in teardown",
        "LookupError: no record today",
    )
