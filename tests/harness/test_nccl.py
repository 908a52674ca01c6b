"""What a rank's GPU waits for on NCCL: read from torch's flight recorder, asked for at a deadline, shown and blamed.

No GPU is needed: the recorder is a fake that returns what torch's returns.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import expecttest
import pytest
import torch._C._distributed_c10d as c10d
from everyrank.controller.witnesses import Witnesses
from everyrank.rank import nccl, witness
from everyrank.rollcall import rollcall
from everyrank.rollcall.blame import blame
from everyrank.rollcall.nccl import text
from everyrank.rollcall.rollcall import Stance
from everyrank.stack.frames import Frame
from everyrank.wire.messages import NcclCall, OnNccl, WitnessStatement
from everyrank.wire.witness_pipe import NCCL, WAIT, path

from tests.inner import Inner, Project
from tests.nccl_dump import dumped, entry

Fake = Callable[..., None]


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Make torch's recorder return these entries, or raise this error."""

    def fake(*entries: dict[str, Any], error: Exception | None = None) -> None:
        def dump(collectives: bool, only_active: bool) -> bytes:
            if error is not None:
                raise error
            return dumped(*entries)

        monkeypatch.setattr(c10d, "_dump_nccl_trace_json", dump, raising=False)

    return fake


# --- on a rank -------------------------------------------------------------------------------------------


def test_the_oldest_call_that_is_not_over_is_the_one_that_the_gpu_waits_in(recorder: Fake) -> None:
    recorder(entry(2, "broadcast"), entry(0, state="completed"), entry(1, input_sizes=[[2, 2]], state="started"))
    waits_in = NcclCall("all_reduce", 2, "", "(2, 2) Float", started=True)
    last = NcclCall("broadcast", 3, "", "(3,) Float", started=False)
    assert nccl.report(7, 0) == OnNccl(7, first=waits_in, last=last, pending=2, begun=3)


@pytest.mark.parametrize("over", [{"state": "completed"}, {"retired": True}])
def test_a_call_is_over_when_the_gpu_is_done_or_the_watchdog_has_seen_it(
    recorder: Fake, over: dict[str, Any]
) -> None:
    recorder(entry(0, **over))
    seen = nccl.report(7, 0)
    assert (seen.first, seen.pending, seen.begun) == (None, 0, 1)


def test_calls_before_the_test_do_not_count(recorder: Fake) -> None:
    recorder(entry(0), entry(1, time_created_ns=5000))
    assert nccl.report(7, 2000).begun == 1


def test_a_message_has_no_number(recorder: Fake) -> None:
    recorder(entry(0, "recv 0<-1", is_p2p=True, p2p_seq_id=1))
    seen = nccl.report(7, 0).first
    assert seen is not None
    assert (seen.name, seen.number) == ("recv 0<-1", None)


@pytest.mark.parametrize(("title", "group"), [("tp", "tp"), ("undefined", "3"), ("default_pg", "")])
def test_a_group_goes_by_its_title(recorder: Fake, title: str, group: str) -> None:
    recorder(entry(0, process_group=["3", title]))
    seen = nccl.report(7, 0).first
    assert seen is not None
    assert seen.group == group


def test_a_recorder_without_a_call_is_empty(recorder: Fake) -> None:
    recorder()
    assert nccl.report(7, 0) == OnNccl(7)


def test_a_fault_on_the_gpu_is_reported(recorder: Fake) -> None:
    recorder(error=RuntimeError("CUDA error: device-side assert triggered\nCUDA kernel errors might be"))
    assert nccl.report(7, 0).problem == "RuntimeError: CUDA error: device-side assert triggered"


def test_a_format_of_another_torch_is_reported(recorder: Fake) -> None:
    recorder({"record_id": 0})
    assert nccl.report(7, 0).problem == "KeyError: 'time_created_ns'"


@pytest.mark.parametrize(("records_already", "value"), [(True, None), (False, "2000")])
def test_only_releases_that_do_not_record_are_asked_to(
    recorder: Fake, monkeypatch: pytest.MonkeyPatch, records_already: bool, value: str | None
) -> None:
    recorder()
    monkeypatch.setattr(os, "environ", {})
    if not records_already:
        monkeypatch.delattr(c10d, "_dump_fr_trace_json")
    nccl.turn_on()
    assert os.environ.get("TORCH_NCCL_TRACE_BUFFER_SIZE") == value


@pytest.mark.parametrize(
    ("backend", "recorded"),
    [("nccl", True), ("cpu:gloo,cuda:nccl", True), ("gloo", True), ("mpi", False)],
)
def test_a_witness_starts_with_a_group_whose_calls_are_recorded(recorder: Fake, backend: str, recorded: bool) -> None:
    recorder()
    assert witness.is_recorded(backend) is recorded


# --- in the controller -----------------------------------------------------------------------------------


def test_a_rank_with_a_witness_is_asked_and_one_that_does_not_answer_is_reported_as_silent(tmp_path: Path) -> None:
    asked = Witnesses(str(tmp_path), test=7, nccl=True)
    os.mkfifo(path(str(tmp_path), 100))
    fifo = os.open(path(str(tmp_path), 100), os.O_RDWR)
    try:
        asked.ask({0: 100, 1: 200})
        assert os.read(fifo, 9) == WAIT + NCCL
    finally:
        os.close(fifo)
    assert not asked.all_answered()
    asked.hear(0, OnNccl(6))  # an answer that came too late, in the test before
    assert asked.on_nccl(0) == OnNccl(7, problem="it did not answer")
    assert asked.on_nccl(1) is None
    asked.hear(0, OnNccl(7, begun=3))
    assert not asked.all_answered()
    asked.hear(0, WitnessStatement(7, thread=1))
    assert asked.all_answered()


# --- in the roll call ------------------------------------------------------------------------------------

HERE = "/home/me/test_x.py"
SYNCHRONIZES = (
    Frame("/venv/lib/python3.12/site-packages/torch/cuda/__init__.py", 1000, "synchronize"),
    Frame(HERE, 40, "test_loop"),
)
READS_A_VALUE = (Frame(HERE, 41, "test_loop"),)  # .item() has no frame


def on(number: int, name: str = "all_reduce", group: str = "", **more: Any) -> OnNccl:
    call = NcclCall(name, number, group, "(3,) Float", started=False)
    return OnNccl(7, **{"first": call, "last": call, "pending": 1, "begun": number, **more})


def stances(*seen: OnNccl | None, stack: tuple[Frame, ...] = SYNCHRONIZES) -> list[Stance]:
    return [Stance(rank, stack).on_gpu(on_gpu) for rank, on_gpu in enumerate(seen)]


def blamed(*seen: OnNccl | None, stack: tuple[Frame, ...] = SYNCHRONIZES) -> tuple[int, ...]:
    return blame([stance.evidence for stance in stances(*seen, stack=stack)]).ranks


def test_the_rank_whose_gpu_is_in_another_collective_is_blamed() -> None:
    assert blamed(on(5), on(4, "broadcast"), on(5)) == (1,)


def test_a_line_that_waits_for_the_gpu_without_a_frame_is_a_wait() -> None:
    assert blamed(on(5), on(4), on(5), stack=READS_A_VALUE) == (1,)


def test_a_rank_whose_gpu_waits_for_nothing_is_blamed_where_the_others_wait() -> None:
    assert blamed(on(5), OnNccl(7), on(5), stack=READS_A_VALUE) == (1,)


def test_nobody_is_blamed_if_it_is_unknown_what_a_gpu_waits_for() -> None:
    assert blamed(on(5), OnNccl(7, problem="it did not answer"), on(5)) == ()


def test_numbers_of_different_groups_are_not_compared() -> None:
    assert blamed(on(5), on(4, group="tp"), on(5)) == ()


class TestText(expecttest.TestCase):
    def test_the_roll_call_names_the_call_of_each_rank(self) -> None:
        stopped = OnNccl(7, problem="it did not answer")
        found = stances(on(5), on(4, "broadcast"), on(5), stopped)
        self.assertExpectedInline(
            rollcall.render(found, blame([stance.evidence for stance in found]), cause_is_known=True),
            """\
ranks 0,2 are waiting in synchronize at test_x.py:40, NCCL in all_reduce, the 5th of the default group
rank 1 is waiting in synchronize at test_x.py:40, NCCL in broadcast, the 4th of the default group
rank 3 is waiting in synchronize at test_x.py:40

NCCL's flight recorder, in this test:
ranks 0,2: all_reduce of (3,) Float, the 5th of the default group: not over
rank 1: broadcast of (3,) Float, the 4th of the default group: not over
rank 3: unknown: it did not answer

ranks 0,2, innermost frame first:
  synchronize at torch/cuda/__init__.py:1000
  test_loop at test_x.py:40

rank 1, innermost frame first:
  synchronize at torch/cuda/__init__.py:1000
  test_loop at test_x.py:40

rank 3, innermost frame first:
  synchronize at torch/cuda/__init__.py:1000
  test_loop at test_x.py:40""",
        )

    def test_what_a_recorder_shows(self) -> None:
        call = NcclCall("all_gather", 3, "tp", "(2, 2) Float", started=True)
        message = NcclCall("recv 0<-1", None, "", "", started=False)
        seen = (
            OnNccl(7),
            OnNccl(7, last=call, begun=4),
            OnNccl(7, first=call, last=message, pending=3, begun=9),
            OnNccl(7, first=message, last=message, pending=1, begun=1),
        )
        self.assertExpectedInline(
            "\n".join(map(text, seen)).replace("; ", ";\n  "),
            """\
nothing was called in this test
all 4 calls are over, the last was all_gather of (2, 2) Float, the 3rd of the group tp
all_gather of (2, 2) Float, the 3rd of the group tp: started on the GPU, not over;
  2 more behind it, the last is recv 0<-1 in the default group
recv 0<-1 in the default group: not over""",
        )


# --- in a world --------------------------------------------------------------------------------------------

#: On GPUs that everyrank only believes in; the recorder of gloo stands for NCCL's, with the names changed.
HANGS = """
    import threading

    import pytest
    import torch
    import torch._C._distributed_c10d as c10d
    import torch.distributed as dist

    c10d._dump_nccl_trace_json = lambda *asked: c10d._dump_fr_trace_json(*asked).replace(b'"gloo:', b'"nccl:')

    torch.cuda.set_device = lambda device: None

    def synchronize():
        threading.Event().wait()

    @pytest.mark.world(2, gpus=2, backend="gloo", timeout=1)
    def test_a_collective_is_missing(process_group, world):
        if world.rank == 0:
            dist.all_reduce(torch.ones(3), async_op=True)
        synchronize()
"""


@pytest.fixture(scope="module")
def inner(module_project: Project) -> Inner:
    module_project.write("test_inner.py", HANGS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EVERYRANK_DEVICES", "2")
        return module_project.run()


def test_the_last_collective_of_each_rank_is_named_when_the_deadline_is_missed(inner: Inner) -> None:
    found = inner["test_a_collective_is_missing"].text
    assert "rank 0: all_reduce of (3,) Float, the 1st of the default group: not over" in found
    assert "rank 1: nothing was called in this test" in found
    assert "NCCL in all_reduce, the 1st of the default group (deadline 1 s)" in found.splitlines()[0]
