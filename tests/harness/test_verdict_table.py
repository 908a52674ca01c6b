"""The truth table of everyrank.verdict.rules, rule by rule, on hand-made fates."""

from __future__ import annotations

from typing import Any

import pytest
from everyrank.rollcall.rollcall import Stance
from everyrank.stack.frames import Frame
from everyrank.verdict.fates import Fate, Fates
from everyrank.verdict.rules import judge
from everyrank.wire.messages import Phase, Record

EXIT_0, EXIT_3, SIGKILL, SIGSEGV = 0, 3 << 8, 9, 11 | 0x80
ECHO = "RuntimeError: [/src/gloo/pair.cc:534] Connection closed by peer [127.0.0.1]:4711"


def phase(when: str = "call", outcome: str = "passed", **more: Any) -> Phase:
    more.setdefault("signature", more.get("brief", ""))
    return Phase(when, outcome, more.pop("report", {}), **more)


def skip(reason: str = "why", when: str = "call") -> Phase:
    return phase(when, "skipped", report={"longrepr": ["test_x.py", 3, f"Skipped: {reason}"]})


def failed(
    brief: str = "ValueError: bad", time: float = 1.0, when: str = "call", location: str = "test_x.py:5"
) -> Phase:
    return phase(when, "failed", ended_at=time, brief=brief, location=location)


def record(*phases: Phase, print_: str = "test_x", **more: Any) -> Record:
    return Record(print_, list(phases), [], [], [], None, **more)


def ran(rank: int, call: Phase | None = None, **more: Any) -> Fate:
    """Return the fate of a rank that went through all three phases."""
    return Fate(rank, record(phase("setup"), call or phase(), phase("teardown"), **more))


def lost(rank: int, status: int, time: float = 1.0, when: str = "call", **more: Any) -> Fate:
    return Fate(rank, status=status, ended_at=time, phase=when, **more)


def cut(rank: int, **more: Any) -> Fate:
    """Return the fate of a rank that waited in all_reduce when it was cut off."""
    stack = (
        Frame("/site-packages/torch/distributed/distributed_c10d.py", 9, "all_reduce"),
        Frame("/home/me/test_x.py", 12, "t"),
    )
    return Fate(rank, cut=True, phase=more.pop("when", "call"), stance=Stance(rank, stack), **more)


def out_of_order(fate: Fate, reason: str = "killed by SIGSEGV") -> Fate:
    fate.out_of_order = f"ended after its record: {reason}"
    return fate


def in_phase(when: str, bad: Phase) -> Fate:
    """Return the fate of rank 1, which went through all phases, one of them bad."""
    return Fate(1, record(*(bad if name == when else phase(name) for name in ("setup", "call", "teardown"))))


Row = tuple[Fates, dict[str, Any]]


def row(*fates: Fate, world: dict[str, Any] | None = None, **expected: Any) -> Row:
    """Return the fates of a world, and what must be true of its verdict: of each value that is named."""
    if "end" in expected:
        expected["rule"], expected["outcome"], expected["when"] = expected.pop("end")
    return Fates(list(fates), **world or {}), expected


WAITING = "waiting in all_reduce at test_x.py:12"
FAILED, LOST, INCOMPLETE = (("failed",) * 2, ("lost", "failed"), ("incomplete", "failed"))
DEADLINE = {"deadline": 2.0, "deadline_from": "the mark world"}
XPASSED, XFAILED = phase("call", "xpassed"), phase("call", "xfailed")
STRICT = phase("call", "xpassed", strict_xpass=True)

GREEN_NEEDS_PROOF = {
    "every rank filed a complete record": row(ran(0), ran(1), ran(2), end=("passed", "passed", "call")),
    **{
        f"only {'-'.join(phases) or 'nothing'} is recorded": row(
            ran(0),
            Fate(1, record(*map(phase, phases))),
            end=(*INCOMPLETE, "call"),
            starts="rank 1 filed an incomplete record: only ",
        )
        for phases in ([], ["setup"], ["setup", "call"], ["setup", "teardown"], ["setup", "call", "call", "teardown"])
    },
    "an incomplete record beside an xpass": row(ran(0, XPASSED), Fate(1, record(phase("setup"))), outcome="failed"),
    "silence": row(ran(0), Fate(1), end=("silent", "failed", "call"), headline="rank 1 filed no record"),
    "no news at all": row(Fate(0), Fate(1), outcome="failed"),
    **{
        f"a rank that {call.outcome} does not leave in order": row(
            ran(0, call),
            out_of_order(ran(1, call), "exit code 3"),
            end=("disorder", "failed", "call"),
            headline="rank 1 of 2 did not leave in order",
            others=("rank 1 ended after its record: exit code 3",),
        )
        for call in (phase(), XPASSED, skip())
    },
    "a rank dies after its record, and its peer loses the connection": row(
        ran(0, failed(ECHO)),
        out_of_order(ran(1)),
        end=("disorder", "failed", "call"),
        headline="rank 1 of 2 did not leave in order",
        others=(
            "rank 1 ended after its record: killed by SIGSEGV",
            "rank 0: lost the connection to a peer at test_x.py:5",
        ),
    ),
    "a rank dies after its record, and another has failed": row(
        ran(0, failed()), out_of_order(ran(1)), end=(*FAILED, "call")
    ),
    "some never finish though no rank failed": row(
        ran(0),
        cut(1),
        cut(2),
        end=("cut", "failed", "call"),
        headline="ranks 1,2 of 3 never finished",
        others=("rank 0: passed", f"ranks 1,2: {WAITING}"),
    ),
}

INTERRUPTS = {
    "an interrupted world names what its ranks did": row(
        ran(0),
        cut(1),
        cut(2),
        world={"interrupted": "Ctrl-C"},
        end=("interrupted", "failed", "call"),
        headline="rank 0 ended its test; ranks 1,2 wait in all_reduce at test_x.py:12 (interrupted)\n"
        "Ctrl-C interrupted the world of 3: ranks 1,2 had not finished",
    ),
    "a failure before the interrupt": row(cut(0), ran(1, failed()), world={"interrupted": "Ctrl-C"}, rule="failed"),
    "a death before the interrupt": row(cut(0), lost(1, SIGKILL), world={"interrupted": "Ctrl-C"}, rule="lost"),
    "an interrupt is no expected failure": row(
        ran(0, XFAILED), cut(1), world={"interrupted": "SIGTERM"}, outcome="failed"
    ),
}

FAILURES = {
    "one rank failed, its peers are folded": row(
        cut(0),
        ran(1, failed()),
        cut(2),
        cut(3),
        end=(*FAILED, "call"),
        lead=1,
        alike=(1,),
        headline="rank 1 of 4 failed first, in call",
        others=(f"ranks 0,2,3: {WAITING}",),
    ),
    "the earliest is the root": row(
        ran(0, failed("KeyError: late", time=2.0)),
        ran(1, failed("ValueError: early", time=1.0)),
        lead=1,
        others=("rank 0: KeyError: late at test_x.py:5",),
    ),
    "of failures at the same time the lowest rank is the root": row(
        ran(0, failed("KeyError: a")), ran(1, failed("ValueError: b")), lead=0
    ),
    "the same on all ranks is reported once": row(
        *(ran(rank, failed(time=rank)) for rank in range(4)), headline="on ranks 0-3", others=()
    ),
    "a world of one needs no rank": row(ran(0, failed()), headline=""),
    **{
        f"an echo that came first never outranks the cause: {brief}": row(
            ran(0, failed(brief, time=1.0)), ran(1, failed("ValueError: the cause", time=2.0)), lead=1
        )
        for brief in (
            ECHO,
            "ConnectionResetError: [Errno 104] Connection reset by peer",
            "BrokenPipeError: [Errno 32] Broken pipe",
            "RuntimeError: eof (this error originated at tensorpipe/transport/uv/connection_impl.cc:142)",
            "DistBackendError: NCCL error: remote process exited or there was a network error",
        )
    },
    "an echo alone": row(ran(0, failed(ECHO)), ran(1), end=(*FAILED, "call"), lead=0),
    "an assertion is never an echo": row(
        ran(0, failed("AssertionError: broken pipe", time=1.0)),
        ran(1, failed("RuntimeError: timed out", time=2.0)),
        lead=0,
    ),
    "an echo among the others has plain words": row(
        ran(0, failed("ValueError: the cause")),
        ran(1, failed(ECHO, location="test_x.py:9")),
        others=("rank 1: lost the connection to a peer at test_x.py:9",),
    ),
    **{
        f"outside of the user's code, the {when} is named": row(
            lost(0, SIGSEGV),
            in_phase(when, failed(ECHO, when=when, location="")),
            others=(f"rank 1: lost the connection to a peer, in {when}",),
        )
        for when in ("setup", "teardown")
    },
    **{
        f"it is reported in its phase: {when}": row(
            ran(0),
            in_phase(when, failed(when=when)),
            end=(*FAILED, when),
            headline=f"rank 1 of 2 failed first, in {when}",
        )
        for when in ("setup", "teardown")
    },
    "its rank hung in the teardown afterwards": row(
        cut(0, when="teardown", early=[failed()]),
        cut(1),
        end=(*FAILED, "call"),
        others=(f"rank 0: ValueError: bad at test_x.py:5; then, in teardown, {WAITING}", f"rank 1: {WAITING}"),
    ),
    "its rank died in the teardown afterwards": row(
        lost(0, SIGSEGV, time=2.0, when="teardown", early=[failed(time=1.0)]),
        cut(1),
        end=(*FAILED, "call"),
        others=(
            "rank 0: ValueError: bad at test_x.py:5; then, in teardown, was killed by SIGSEGV",
            f"rank 1: {WAITING}",
        ),
    ),
}

DEATHS = {
    **{
        f"it {death}": row(
            cut(0),
            lost(1, status),
            cut(2),
            end=(*LOST, "call"),
            headline=f"rank 1 of 3 {death} in call",
            others=(f"ranks 0,2: {WAITING}",),
        )
        for status, death in (
            (EXIT_0, "left without a record (exit code 0)"),
            (EXIT_3, "left without a record (exit code 3)"),
            (SIGKILL, "was killed by SIGKILL"),
            (SIGSEGV, "was killed by SIGSEGV"),
            (40, "was killed by signal 40"),
        )
    },
    "several ranks died in the same way": row(
        lost(0, SIGKILL), ran(1), lost(2, SIGKILL, time=2.0), headline="ranks 0,2 of 3 were killed by SIGKILL in call"
    ),
    "the first of several is the root": row(
        lost(0, EXIT_3, time=2.0),
        lost(1, SIGKILL, time=1.0),
        lead=1,
        others=("rank 0: left without a record (exit code 3)",),
    ),
    "before an exception it is the root": row(
        lost(0, SIGKILL, time=1.0),
        ran(1, failed("RuntimeError: timed out", time=2.0)),
        rule="lost",
        others=("rank 1: RuntimeError: timed out at test_x.py:5",),
    ),
    "after an exception it is not": row(
        lost(0, EXIT_3, time=2.0),
        ran(1, failed(time=1.0)),
        rule="failed",
        lead=1,
        others=("rank 0: left without a record (exit code 3)",),
    ),
    "an echo that was noticed first never outranks it": row(
        lost(0, SIGKILL, time=2.0), ran(1, failed(ECHO, time=1.0)), rule="lost"
    ),
    "a lost launcher outranks all": row(
        ran(0, failed()),
        Fate(1),
        world={"launcher_lost": "was killed by SIGKILL"},
        end=("launcher lost", "failed", "call"),
        headline="the zygote was killed by SIGKILL, and all ranks with it",
    ),
}

DEADLINES = {
    "the late ranks and the source of the deadline are named": row(
        ran(0),
        cut(1),
        cut(2),
        world=DEADLINE,
        end=("deadline", "failed", "call"),
        headline="rank 0 ended its test; ranks 1,2 wait in all_reduce at test_x.py:12 (deadline 2 s)\n"
        "the world of 3 missed its deadline of 2 s (the mark world): ranks 1,2 had not finished",
        others=("rank 0: passed",),
    ),
    "a deadlocked world has its cause": row(
        cut(0),
        ran(1),
        world={"deadlock": "rank 1 ended its test without reaching this all_reduce (test_x.py:12)"},
        end=("deadlock", "failed", "call"),
        headline="rank 1 ended its test without reaching this all_reduce (test_x.py:12)\n"
        "the world of 2 was deadlocked: rank 0 could never have continued, so the test ended before its deadline",
        others=("rank 1: passed",),
    ),
    "a failure in a deadlocked world is the root": row(
        cut(0),
        in_phase("teardown", failed(when="teardown")),
        world={"deadlock": "they wait"},
        end=(*FAILED, "teardown"),
    ),
    "an expected failure does not cover a deadlock": row(
        ran(0, XFAILED), cut(1), world={"deadlock": "they wait"}, outcome="failed"
    ),
    "a failure before the deadline is the root": row(ran(0, failed()), cut(1), world=DEADLINE, end=(*FAILED, "call")),
    "a death before the deadline is the root": row(lost(0, SIGKILL), cut(1), world=DEADLINE, rule="lost"),
}

SKIPS = {
    **{
        f"all ranks skip in {when}": row(
            *(Fate(rank, record(*phases)) for rank in range(2)), end=("all skipped", "skipped", when)
        )
        for when, phases in {
            "setup": [skip(when="setup"), phase("teardown")],
            "call": [phase("setup"), skip(), phase("teardown")],
        }.items()
    },
    "only some skip": row(
        ran(0),
        ran(1, skip("no room")),
        cut(2),
        ran(3, skip("no data")),
        end=("some skipped", "failed", "call"),
        headline="ranks disagree: only some of them skipped",
        others=("rank 1 skipped: no room", "rank 3 skipped: no data", "rank 0: passed", f"rank 2: {WAITING}"),
    ),
    "a failure outranks a disagreement": row(ran(0, skip()), ran(1, failed()), rule="failed"),
    "a skip beside an expected failure": row(ran(0, skip()), ran(1, XFAILED), rule="some skipped"),
    "a failed teardown after skips": row(
        ran(0, skip()), Fate(1, record(phase("setup"), skip(), failed(when="teardown"))), end=(*FAILED, "teardown")
    ),
}

EXPECTED_FAILURES = {
    "on one rank it is the world's": row(ran(0), ran(1, XFAILED), cut(2), end=("xfailed", "xfailed", "call"), lead=1),
    "it outranks passing on another": row(ran(0, XPASSED), ran(1, XFAILED), outcome="xfailed"),
    **{
        f"it does not cover {name}": row(ran(0, XFAILED), bad, end=(rule, "failed", "call"))
        for name, bad, rule in (
            ("a death", lost(1, SIGKILL), "lost"),
            ("silence", Fate(1), "silent"),
            ("another failure", ran(1, failed()), "failed"),
        )
    },
    "it does not cover a timeout": row(ran(0, XFAILED), cut(1), world={"deadline": 1.0}, outcome="failed"),
    "in teardown alone it covers no strict unexpected pass of the call": row(
        Fate(0, record(phase("setup"), STRICT, phase("teardown", "xfailed"))), rule="strict xpass", outcome="failed"
    ),
    "an unexpected pass on all ranks": row(ran(0, XPASSED), ran(1, XPASSED), end=("xpassed", "xpassed", "call")),
    "a strict unexpected pass on rank 0": row(ran(0, STRICT), ran(1), end=("strict xpass", "failed", "call")),
    "a strict unexpected pass on rank 1": row(ran(0), ran(1, STRICT), end=("strict xpass", "failed", "call")),
}

OTHER_TESTS = {
    "ranks ran different tests": row(
        ran(0, print_="test_x a=1"),
        ran(1, print_="test_x a=2"),
        ran(2, print_="test_x a=1"),
        end=("different items", "error", "setup"),
        headline="ranks ran different tests\n  ranks 0,2: test_x a=1\n  rank 1: test_x a=2",
    ),
    "a rank that could not run the test outranks deaths": row(
        lost(0, SIGKILL, time=0.5),
        Fate(1, record(print_="", trouble="no such test here")),
        end=("not run", "error", "setup"),
        headline="rank 1 could not run the test:\nno such test here",
    ),
}

TABLE = {
    f"{about}: {name}": row
    for about, rows in {
        "green needs proof": GREEN_NEEDS_PROOF,
        "interrupts": INTERRUPTS,
        "failures": FAILURES,
        "deaths": DEATHS,
        "deadlines": DEADLINES,
        "skips": SKIPS,
        "expected failures": EXPECTED_FAILURES,
        "other tests": OTHER_TESTS,
    }.items()
    for name, row in rows.items()
}


@pytest.mark.parametrize(("fates", "expected"), TABLE.values(), ids=TABLE)
def test_a_row_of_the_truth_table(fates: Fates, expected: dict[str, Any]) -> None:
    judged = judge(fates)
    starts = expected.get("starts", "")
    assert judged.headline.startswith(starts)
    assert {name: getattr(judged, name) for name in expected if name != "starts"} == {
        name: value for name, value in expected.items() if name != "starts"
    }
