"""The judge of ``make kills`` finds each kind of wrong verdict, and nothing that is true. No process is started."""

from __future__ import annotations

import os
import socket
from dataclasses import replace

import pytest

from tests.kills.judge import Kill, Line, Seen, Span, judge
from tests.kills.plan import ROLES, Shot, draw, pick
from tests.kills.processes import Process, at_port, below, by_role
from tests.kills.truth import Truth

TRUTHS = {
    "test_passes": Truth("pass"),
    "test_fails": Truth("fail", "planted"),
    "test_last": Truth("pass"),
    "test_single": Truth("fail", size=0),
}

RANK, OTHERS_RANK, KEEPER, CONTROLLER = 11, 99, 10, 1

PASSES = Span("test_passes", CONTROLLER, 10, 20, {RANK: 11, 12: 11})
FAILS = Span("test_fails", CONTROLLER, 20.1, 30, {RANK: 21, 12: 21})
LAST = Span("test_last", CONTROLLER, 30.1, 40, {13: 31, 14: 31})

CALM = Seen(
    kills=(),
    spans=(PASSES, FAILS, LAST),
    lines=(Line("test_passes", "pass", ""), Line("test_fails", "fail", "planted"), Line("test_last", "pass", "")),
    status=1,
    has_footer=True,
)
LOST = Line("test_passes", "crash", "rank 0 of 2 was killed by SIGKILL")
KILL = Kill("rank", RANK, "SIGKILL", sent=15, gone=15.1)
END = Kill("controller", CONTROLLER, "SIGKILL", sent=25, gone=25, ends_run=True)


def with_line(seen: Seen, line: Line) -> Seen:
    return replace(seen, lines=[line if line.test == other.test else other for other in seen.lines])


def killed(line: Line, *kills: Kill) -> Seen:
    return with_line(replace(CALM, kills=kills), line)


RIGHT = {
    "nothing was killed": CALM,
    "a kill that no test notices": replace(CALM, kills=[KILL]),
    "a test that names the kill of its rank": killed(LOST, KILL),
    "a rank that was killed before it began": killed(LOST, replace(KILL, pid=OTHERS_RANK, sent=10.5, gone=10.6)),
    "a kill in the moment before the test": killed(LOST, replace(KILL, sent=9.5, gone=10.01)),
    "a failing test that names the kill": killed(replace(LOST, test="test_fails"), replace(KILL, sent=22, gone=22)),
    "a killed keeper takes its ranks with it": killed(
        replace(LOST, message="the zygote was killed by SIGSEGV, and all ranks with it"),
        Kill("keeper", KEEPER, "SIGSEGV", sent=15, gone=15.1),
    ),
    "a stopped rank misses the deadline": killed(
        Line("test_passes", "timeout", "the world of 2 missed its deadline"),
        replace(KILL, signal="SIGSTOP", gone=1e9),
    ),
    "a killed worker": killed(
        replace(LOST, message="worker 'gw0' crashed while running"), Kill("worker", CONTROLLER, "SIGKILL", 15, 15)
    ),
    "a killed controller leaves what it has written": replace(
        CALM, kills=[END], status=-9, has_footer=False, lines=CALM.lines[:1]
    ),
    "a run that is ended reports what it did not run": with_line(
        replace(CALM, kills=[END], status=2), Line("test_last", "not-run", "")
    ),
    "a keeper that dies before the first test": replace(
        CALM,
        kills=[Kill("keeper", KEEPER, "SIGKILL", 5, 5)],
        spans=(),
        lines=(),
        status=4,
        has_footer=False,
        output="--launcher=spawn is not possible: was killed by SIGKILL",
    ),
}


@pytest.mark.parametrize("seen", RIGHT.values(), ids=RIGHT)
def test_what_is_true_is_not_called_wrong(seen: Seen) -> None:
    assert judge(seen, TRUTHS) == []


WRONG = {
    "a failing test is green": (
        with_line(CALM, Line("test_fails", "pass", "")),
        "test_fails is 'pass' (), no kill touched it, and it is 'fail' in truth",
    ),
    "a failing test whose rank was killed is green": (
        killed(Line("test_fails", "pass", ""), replace(KILL, sent=25, gone=25)),
        "test_fails is 'pass', which is neither its true outcome, 'fail', nor red",
    ),
    "a killed test is skipped": (
        killed(Line("test_passes", "skipped", "killed by SIGKILL"), KILL),
        "test_passes is 'skipped', which is neither its true outcome, 'pass', nor red",
    ),
    "an untouched test is red": (
        killed(replace(LOST, test="test_last"), KILL),
        "test_last is 'crash' (rank 0 of 2 was killed by SIGKILL), no kill touched it, and it is 'pass' in truth",
    ),
    "a test is red for the kill of another world's rank": (
        killed(LOST, replace(KILL, pid=OTHERS_RANK)),
        "test_passes is 'crash' (rank 0 of 2 was killed by SIGKILL), no kill touched it, and it is 'pass' in truth",
    ),
    "a killed test is red for another reason": (
        killed(Line("test_passes", "fail", "AssertionError: 1 != 2"), KILL),
        "test_passes is 'fail' with a reason that names no kill: AssertionError: 1 != 2",
    ),
    "a killed test names another signal": (
        killed(LOST, replace(KILL, signal="SIGSEGV")),
        "test_passes is 'crash' with a reason that names no kill: rank 0 of 2 was killed by SIGKILL",
    ),
    "an untouched failing test fails for another reason": (
        with_line(CALM, Line("test_fails", "fail", "connection closed by peer")),
        "test_fails is 'fail' (connection closed by peer), no kill touched it, and it is 'fail' in truth",
    ),
    "a test is given up though the run goes on": (
        killed(Line("test_passes", "interrupted", ""), KILL),
        "test_passes is 'interrupted', and nothing was killed that ends the run",
    ),
    "a test before the end of the run is given up": (
        with_line(replace(CALM, kills=[END], status=2), Line("test_passes", "not-run", "")),
        "test_passes is 'not-run' (), no kill touched it, and it is 'pass' in truth",
    ),
    "a test has no line": (replace(CALM, lines=CALM.lines[1:]), "test_passes has no line in the run file"),
    "a test has two lines": (
        replace(CALM, lines=(*CALM.lines, CALM.lines[0])),
        "test_passes stands in the run file 2 times",
    ),
    "no footer": (replace(CALM, has_footer=False), "the run file has no footer"),
    "green": (replace(CALM, status=0), "the run is green, and has tests that fail"),
    "a run that is ended is green": (
        replace(CALM, kills=[END], status=0),
        "the run is green, and has tests that fail",
    ),
    "the run breaks off": (
        replace(CALM, kills=[KILL], status=3),
        "the exit status is 3, and nothing was killed that the run needs",
    ),
    "an internal error": (
        replace(CALM, output="INTERNALERROR> Traceback"),
        "the run reports an internal error of pytest",
    ),
    "an endless wait": (replace(CALM, status=None), "the run did not end"),
    "a process is left": (replace(CALM, left=["process 7: sleep"]), "left behind: process 7: sleep"),
}


@pytest.mark.parametrize(("seen", "sentence"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_named(seen: Seen, sentence: str) -> None:
    assert judge(seen, TRUTHS) == [sentence]


# --- what is killed ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("launcher", ROLES)
def test_the_same_seed_and_run_draw_the_same_kills(launcher: str) -> None:
    assert draw(launcher, 1, 2, most=6) == draw(launcher, 1, 2, most=6)
    assert draw(launcher, 1, 2, most=6).shots != draw(launcher, 1, 3, most=6).shots


def test_a_shot_falls_back_on_a_rank() -> None:
    shot = Shot(("began", "test_passes"), 0.0, "successor", pick=0.6, signal="SIGKILL")
    assert pick(shot, {"successor": [1, 2], "rank": [3, 4]}) == ("successor", 2)
    assert pick(shot, {"rank": [3, 4]}) == ("rank", 4)
    assert pick(shot, {"helper": [5]}) is None


def test_who_knocks_is_killed_under_ray_alone() -> None:
    shots = {launcher: [shot for run in range(5) for shot in draw(launcher, 1, run, 14).shots] for launcher in ROLES}
    knocks = {launcher: [shot for shot in drawn if shot.event[0] == "knock"] for launcher, drawn in shots.items()}
    assert {launcher for launcher, drawn in knocks.items() if drawn} == {"ray"}
    assert 0.2 < len(knocks["ray"]) / len(shots["ray"]) < 0.4
    knock = replace(knocks["ray"][0], pid=5)
    assert pick(knock, {"actor": [4, 5], "rank": [6]}) == ("actor", 5)
    assert pick(knock, {"actor": [4], "rank": [6]}) is None  # it has ended


def test_who_knocks_is_known_by_its_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door, socket.create_connection(door.getsockname()) as visitor:
        assert at_port(visitor.getsockname()[1]) == os.getpid()


def process(pid: int, parent: int, group: int, session: int, command: str, stacks: bool = False) -> Process:
    return Process(pid, parent, group, session, pid, command, "", stacks)


def test_the_processes_of_a_run_are_known_by_their_groups_and_sessions() -> None:
    found = {
        found.pid: found
        for found in [
            process(1, 0, 1, 1, "python -m pytest"),
            process(10, 1, 10, 10, "python -m pytest"),
            process(11, 10, 11, 10, "python -m pytest"),
            process(12, 11, 12, 10, "python -m pytest", stacks=True),
            process(13, 10, 13, 10, "python -m pytest", stacks=True),
            process(14, 13, 14, 14, "sleep 1"),
        ]
    }
    assert by_role(found, 1, "fork", 0) == {
        "controller": [1],
        "keeper": [10],
        "successor": [11],
        "rank": [12, 13],
        "other": [14],
    }
    assert below(found, 11) == [11, 12]
