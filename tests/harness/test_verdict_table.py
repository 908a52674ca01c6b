"""The truth table of everyrank.verdict.rules, rule by rule, on hand-made fates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from everyrank.rollcall.rollcall import Stance
from everyrank.stack.frames import Frame
from everyrank.verdict.rules import Fate, Fates, Verdict, judge
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


def verdict(*fates: Fate, **more: Any) -> Verdict:
    return judge(Fates(list(fates), **more))


def decision(judged: Verdict) -> tuple[str, str, str]:
    return judged.rule, judged.outcome, judged.when


WAITING = "waiting in all_reduce at test_x.py:12"


# --- green needs proof -----------------------------------------------------------------------------------


def test_passed_when_every_rank_filed_a_complete_record() -> None:
    assert decision(verdict(ran(0), ran(1), ran(2))) == ("passed", "passed", "call")


@pytest.mark.parametrize(
    "phases",
    [
        [],
        [phase("setup")],
        [phase("setup"), phase("call")],
        [phase("setup"), phase("teardown")],
        [phase("setup"), phase("call"), phase("call"), phase("teardown")],
    ],
    ids=lambda phases: "-".join(phase.when for phase in phases) or "nothing",
)
def test_an_incomplete_record_is_failed(phases: Sequence[Phase]) -> None:
    judged = verdict(ran(0), Fate(1, record(*phases)))
    assert decision(judged) == ("incomplete", "failed", "call")
    assert judged.headline.startswith("rank 1 filed an incomplete record: only ")


def test_an_incomplete_record_beside_an_xpass_is_failed() -> None:
    assert verdict(ran(0, phase("call", "xpassed")), Fate(1, record(phase("setup")))).outcome == "failed"


def test_silence_is_failed() -> None:
    judged = verdict(ran(0), Fate(1))
    assert decision(judged) == ("silent", "failed", "call")
    assert judged.headline == "rank 1 filed no record"


def test_a_world_without_any_news_is_failed() -> None:
    assert verdict(Fate(0), Fate(1)).outcome == "failed"


@pytest.mark.parametrize("call", [phase(), phase("call", "xpassed"), skip()], ids=["passed", "xpassed", "skipped"])
def test_a_rank_that_does_not_leave_in_order_is_failed(call: Phase) -> None:
    bad = ran(1, call)
    bad.out_of_order = "ended after its record: exit code 3"
    judged = verdict(ran(0, call), bad)
    assert decision(judged) == ("disorder", "failed", "call")
    assert judged.headline == "rank 1 of 2 did not leave in order"
    assert judged.others == ("rank 1 ended after its record: exit code 3",)


def test_a_rank_that_dies_after_its_record_is_named_and_not_the_peer_that_lost_the_connection() -> None:
    bad = ran(1)
    bad.out_of_order = "ended after its record: killed by SIGSEGV"
    judged = verdict(ran(0, failed(ECHO)), bad)
    assert decision(judged) == ("disorder", "failed", "call")
    assert judged.headline == "rank 1 of 2 did not leave in order"
    assert judged.others == (
        "rank 1 ended after its record: killed by SIGSEGV",
        "rank 0: lost the connection to a peer at test_x.py:5",
    )


def test_a_rank_that_dies_after_its_record_does_not_hide_the_failure_of_another() -> None:
    bad = ran(1)
    bad.out_of_order = "ended after its record: killed by SIGSEGV"
    assert decision(verdict(ran(0, failed()), bad)) == ("failed", "failed", "call")


def test_a_rank_that_never_finished_is_failed_though_no_rank_failed() -> None:
    judged = verdict(ran(0), cut(1), cut(2))
    assert decision(judged) == ("cut", "failed", "call")
    assert judged.headline == "ranks 1,2 of 3 never finished"
    assert judged.others == ("rank 0: passed", f"ranks 1,2: {WAITING}")


# --- an interrupt ----------------------------------------------------------------------------------------


def test_an_interrupted_world_has_failed_and_names_what_its_ranks_did() -> None:
    judged = verdict(ran(0), cut(1), cut(2), interrupted="Ctrl-C")
    assert decision(judged) == ("interrupted", "failed", "call")
    assert judged.headline == (
        "rank 0 ended its test; ranks 1,2 wait in all_reduce at test_x.py:12 (interrupted)\n"
        "Ctrl-C interrupted the world of 3: ranks 1,2 had not finished"
    )


def test_a_rank_that_failed_or_died_before_the_interrupt_is_the_cause() -> None:
    assert verdict(cut(0), ran(1, failed()), interrupted="Ctrl-C").rule == "failed"
    assert verdict(cut(0), lost(1, SIGKILL), interrupted="Ctrl-C").rule == "lost"


def test_an_interrupt_is_no_expected_failure() -> None:
    assert verdict(ran(0, phase(outcome="xfailed")), cut(1), interrupted="SIGTERM").outcome == "failed"


# --- failures --------------------------------------------------------------------------------------------


def test_a_failure_on_one_rank_is_failed_with_its_peers_folded() -> None:
    judged = verdict(cut(0), ran(1, failed()), cut(2), cut(3))
    assert decision(judged) == ("failed", "failed", "call")
    assert (judged.lead, judged.alike) == (1, (1,))
    assert judged.headline == "rank 1 of 4 failed first, in call"
    assert judged.others == (f"ranks 0,2,3: {WAITING}",)


def test_the_earliest_failure_is_the_root() -> None:
    judged = verdict(ran(0, failed("KeyError: late", time=2.0)), ran(1, failed("ValueError: early", time=1.0)))
    assert judged.lead == 1
    assert judged.others == ("rank 0: KeyError: late at test_x.py:5",)


def test_of_failures_at_the_same_time_the_lowest_rank_is_the_root() -> None:
    assert verdict(ran(0, failed("KeyError: a")), ran(1, failed("ValueError: b"))).lead == 0


def test_the_same_failure_on_all_ranks_is_reported_once() -> None:
    judged = verdict(*(ran(rank, failed(time=rank)) for rank in range(4)))
    assert judged.headline == "on ranks 0-3"
    assert judged.others == ()


def test_a_failure_in_a_world_of_one_needs_no_rank() -> None:
    assert verdict(ran(0, failed())).headline == ""


@pytest.mark.parametrize(
    "brief",
    [
        ECHO,
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "RuntimeError: eof (this error originated at tensorpipe/transport/uv/connection_impl.cc:142)",
        "DistBackendError: NCCL error: remote process exited or there was a network error",
    ],
)
def test_an_echo_never_outranks_a_real_cause_even_if_it_came_first(brief: str) -> None:
    judged = verdict(ran(0, failed(brief, time=1.0)), ran(1, failed("ValueError: the cause", time=2.0)))
    assert judged.lead == 1


def test_an_echo_alone_is_still_a_failure() -> None:
    judged = verdict(ran(0, failed(ECHO)), ran(1))
    assert decision(judged) == ("failed", "failed", "call")
    assert judged.lead == 0


def test_an_assertion_is_never_an_echo() -> None:
    judged = verdict(
        ran(0, failed("AssertionError: broken pipe", time=1.0)), ran(1, failed("RuntimeError: timed out", time=2.0))
    )
    assert judged.lead == 0


def test_an_echo_is_described_in_plain_words_among_the_others() -> None:
    judged = verdict(ran(0, failed("ValueError: the cause")), ran(1, failed(ECHO, location="test_x.py:9")))
    assert judged.others == ("rank 1: lost the connection to a peer at test_x.py:9",)


@pytest.mark.parametrize("when", ["setup", "teardown"])
def test_a_failure_outside_of_the_users_code_is_described_by_its_phase(when: str) -> None:
    phases = [phase("setup"), phase("call"), phase("teardown")]
    phases[0 if when == "setup" else 2] = failed(ECHO, when=when, location="")
    judged = verdict(lost(0, SIGSEGV), Fate(1, record(*phases)))
    assert judged.others == (f"rank 1: lost the connection to a peer, in {when}",)


@pytest.mark.parametrize("when", ["setup", "teardown"])
def test_a_failure_is_reported_in_its_phase(when: str) -> None:
    phases = [phase("setup"), phase("call"), phase("teardown")]
    phases[0 if when == "setup" else 2] = failed(when=when)
    judged = verdict(ran(0), Fate(1, record(*phases)))
    assert decision(judged) == ("failed", "failed", when)
    assert judged.headline == f"rank 1 of 2 failed first, in {when}"


def test_a_failure_is_the_root_though_its_rank_hung_in_the_teardown_afterwards() -> None:
    judged = verdict(cut(0, when="teardown", early=[failed()]), cut(1))
    assert decision(judged) == ("failed", "failed", "call")
    assert judged.others == (
        f"rank 0: ValueError: bad at test_x.py:5; then, in teardown, {WAITING}",
        f"rank 1: {WAITING}",
    )


def test_a_failure_is_the_root_though_its_rank_died_in_the_teardown_afterwards() -> None:
    judged = verdict(lost(0, SIGSEGV, time=2.0, when="teardown", early=[failed(time=1.0)]), cut(1))
    assert decision(judged) == ("failed", "failed", "call")
    assert judged.others[0] == "rank 0: ValueError: bad at test_x.py:5; then, in teardown, was killed by SIGSEGV"


# --- deaths ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "death"),
    [
        (EXIT_0, "left without a record (exit code 0)"),
        (EXIT_3, "left without a record (exit code 3)"),
        (SIGKILL, "was killed by SIGKILL"),
        (SIGSEGV, "was killed by SIGSEGV"),
        (40, "was killed by signal 40"),
    ],
)
def test_a_death_names_rank_and_cause(status: int, death: str) -> None:
    judged = verdict(cut(0), lost(1, status), cut(2))
    assert decision(judged) == ("lost", "failed", "call")
    assert judged.headline == f"rank 1 of 3 {death} in call"
    assert judged.others == (f"ranks 0,2: {WAITING}",)


def test_ranks_that_died_in_the_same_way_are_listed_together() -> None:
    judged = verdict(lost(0, SIGKILL), ran(1), lost(2, SIGKILL, time=2.0))
    assert judged.headline == "ranks 0,2 of 3 were killed by SIGKILL in call"


def test_the_first_of_several_deaths_is_the_root() -> None:
    judged = verdict(lost(0, EXIT_3, time=2.0), lost(1, SIGKILL, time=1.0))
    assert judged.lead == 1
    assert judged.others == ("rank 0: left without a record (exit code 3)",)


def test_a_death_before_an_exception_is_the_root() -> None:
    judged = verdict(lost(0, SIGKILL, time=1.0), ran(1, failed("RuntimeError: timed out", time=2.0)))
    assert judged.rule == "lost"
    assert judged.others == ("rank 1: RuntimeError: timed out at test_x.py:5",)


def test_a_death_after_an_exception_is_not_the_root() -> None:
    judged = verdict(lost(0, EXIT_3, time=2.0), ran(1, failed(time=1.0)))
    assert (judged.rule, judged.lead) == ("failed", 1)
    assert judged.others == ("rank 0: left without a record (exit code 3)",)


def test_an_echo_never_outranks_a_death_even_if_it_was_noticed_first() -> None:
    assert verdict(lost(0, SIGKILL, time=2.0), ran(1, failed(ECHO, time=1.0))).rule == "lost"


def test_a_lost_launcher_outranks_all() -> None:
    judged = verdict(ran(0, failed()), Fate(1), launcher_lost="was killed by SIGKILL")
    assert decision(judged) == ("launcher lost", "failed", "call")
    assert judged.headline == "the zygote was killed by SIGKILL, and all ranks with it"


# --- deadlines -------------------------------------------------------------------------------------------


def test_a_missed_deadline_names_the_late_ranks_and_its_source() -> None:
    judged = verdict(ran(0), cut(1), cut(2), deadline=2.0, deadline_from="the mark world")
    assert decision(judged) == ("deadline", "failed", "call")
    assert judged.headline == (
        "rank 0 ended its test; ranks 1,2 wait in all_reduce at test_x.py:12 (deadline 2 s)\n"
        "the world of 3 missed its deadline of 2 s (the mark world): ranks 1,2 had not finished"
    )
    assert judged.others == ("rank 0: passed",)


def test_a_deadlocked_world_has_its_cause() -> None:
    judged = verdict(cut(0), ran(1), deadlock="rank 1 ended its test without reaching this all_reduce (test_x.py:12)")
    assert decision(judged) == ("deadlock", "failed", "call")
    assert judged.headline == (
        "rank 1 ended its test without reaching this all_reduce (test_x.py:12)\n"
        "the world of 2 was deadlocked: rank 0 could never have continued, so the test ended before its deadline"
    )
    assert judged.others == ("rank 1: passed",)


def test_a_failure_in_a_deadlocked_world_is_the_root() -> None:
    bad = Fate(1, record(phase("setup"), phase(), failed(when="teardown")))
    assert decision(verdict(cut(0), bad, deadlock="they wait")) == ("failed", "failed", "teardown")


def test_an_expected_failure_does_not_cover_a_deadlock() -> None:
    assert verdict(ran(0, phase("call", "xfailed")), cut(1), deadlock="they wait").outcome == "failed"


def test_a_failure_before_the_deadline_is_the_root() -> None:
    judged = verdict(ran(0, failed()), cut(1), deadline=2.0, deadline_from="the mark world")
    assert decision(judged) == ("failed", "failed", "call")


def test_a_death_before_the_deadline_is_the_root() -> None:
    assert verdict(lost(0, SIGKILL), cut(1), deadline=2.0).rule == "lost"


# --- skips -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["setup", "call"])
def test_a_skip_on_all_ranks_is_skipped_in_its_phase(when: str) -> None:
    phases = (
        [phase("setup"), skip(), phase("teardown")] if when == "call" else [skip(when="setup"), phase("teardown")]
    )
    judged = verdict(Fate(0, record(*phases)), Fate(1, record(*phases)))
    assert decision(judged) == ("all skipped", "skipped", when)


def test_a_skip_on_some_ranks_is_failed_with_ranks_and_reason() -> None:
    judged = verdict(ran(0), ran(1, skip("no room")), cut(2), ran(3, skip("no data")))
    assert decision(judged) == ("some skipped", "failed", "call")
    assert judged.headline == "ranks disagree: only some of them skipped"
    assert judged.others == (
        "rank 1 skipped: no room",
        "rank 3 skipped: no data",
        "rank 0: passed",
        f"rank 2: {WAITING}",
    )


def test_a_failure_outranks_a_disagreement_on_skipping() -> None:
    assert verdict(ran(0, skip()), ran(1, failed())).rule == "failed"


def test_a_skip_beside_an_expected_failure_is_a_disagreement() -> None:
    assert verdict(ran(0, skip()), ran(1, phase("call", "xfailed"))).rule == "some skipped"


def test_a_failed_teardown_after_skips_is_reported_in_the_teardown() -> None:
    judged = verdict(ran(0, skip()), Fate(1, record(phase("setup"), skip(), failed(when="teardown"))))
    assert decision(judged) == ("failed", "failed", "teardown")


# --- xfail -----------------------------------------------------------------------------------------------


def test_an_expected_failure_on_one_rank_is_the_worlds() -> None:
    judged = verdict(ran(0), ran(1, phase("call", "xfailed")), cut(2))
    assert decision(judged) == ("xfailed", "xfailed", "call")
    assert judged.lead == 1


def test_an_expected_failure_on_one_rank_outranks_passing_on_another() -> None:
    assert verdict(ran(0, phase("call", "xpassed")), ran(1, phase("call", "xfailed"))).outcome == "xfailed"


@pytest.mark.parametrize(
    ("bad", "rule"),
    [(lost(1, SIGKILL), "lost"), (Fate(1), "silent"), (ran(1, failed()), "failed")],
    ids=["death", "silence", "another failure"],
)
def test_an_expected_failure_covers_nothing_else(bad: Fate, rule: str) -> None:
    assert decision(verdict(ran(0, phase("call", "xfailed")), bad)) == (rule, "failed", "call")


def test_an_expected_failure_does_not_cover_a_timeout() -> None:
    assert verdict(ran(0, phase("call", "xfailed")), cut(1), deadline=1.0).outcome == "failed"


def test_an_unexpected_pass_on_all_ranks_is_xpassed() -> None:
    call = phase("call", "xpassed")
    assert decision(verdict(ran(0, call), ran(1, call))) == ("xpassed", "xpassed", "call")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_strict_unexpected_pass_on_any_rank_is_failed(rank: int) -> None:
    fates = [ran(0), ran(1)]
    fates[rank] = ran(rank, phase("call", "xpassed", strict_xpass=True))
    assert decision(verdict(*fates)) == ("strict xpass", "failed", "call")


# --- ranks that did not run the same test ------------------------------------------------------------------


def test_ranks_that_ran_different_tests_are_an_error() -> None:
    judged = verdict(ran(0, print_="test_x a=1"), ran(1, print_="test_x a=2"), ran(2, print_="test_x a=1"))
    assert decision(judged) == ("different items", "error", "setup")
    assert judged.headline == "ranks ran different tests\n  ranks 0,2: test_x a=1\n  rank 1: test_x a=2"


def test_a_rank_that_could_not_run_the_test_is_an_error_and_outranks_deaths() -> None:
    judged = verdict(lost(0, SIGKILL, time=0.5), Fate(1, record(print_="", trouble="no such test here")))
    assert decision(judged) == ("not run", "error", "setup")
    assert judged.headline == "rank 1 could not run the test:\nno such test here"
