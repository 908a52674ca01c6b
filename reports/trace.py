"""Make a trace of a run file, in the format that Perfetto and Chrome's viewer open.

A process of the trace is a worker of the run, or pytest itself. Its first track has the tests with their phases, and
below it each rank has a track. Where a world hung or failed, each rank states what it did at the roll call. An arrow
leads from each rank that waited to the one for which it waited.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from everyrank.model.outcome import RED
from everyrank.reports.runfile.model import CaseLine
from everyrank.reports.runfile.read import Run

Event = dict[str, Any]

#: The format counts in microseconds.
_MICROSECONDS = 1e6

#: The track of the tests of a worker; rank N has track N + 1.
_TESTS = 0


def trace(run: Run) -> str:
    """Return the JSON of the trace. A test that was not run has no time, and is left out."""
    ran = [case for case in run.cases if case.started]
    workers = {worker: number for number, worker in enumerate(sorted({case.worker for case in ran}))}
    sizes = {worker: max(len(case.ranks) for case in ran if case.worker == worker) for worker in workers}
    events = [event for worker, number in workers.items() for event in _names(worker, number, sizes[worker])]
    for case in ran:
        events += _of_case(case, workers[case.worker], run.header.started)
    about = {"torch": run.header.torch, "everyrank": run.header.kit, "launcher": run.header.launcher}
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": about}) + "\n"


def _names(worker: str, number: int, ranks: int) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": number, "args": {"name": worker or "pytest"}}
    for track, name in enumerate(["tests", *(f"rank {rank}" for rank in range(ranks))]):
        yield {"ph": "M", "name": "thread_name", "pid": number, "tid": track, "args": {"name": name}}
        yield {"ph": "M", "name": "thread_sort_index", "pid": number, "tid": track, "args": {"sort_index": track}}


def _of_case(case: CaseLine, worker: int, began: float) -> Iterator[Event]:
    start = (case.started - began) * _MICROSECONDS
    end = start + case.seconds * _MICROSECONDS
    facts = {"outcome": case.outcome, "id": case.id, "world": case.world, "message": case.message, "rule": case.rule}
    yield _slice(case.case or case.id, worker, _TESTS, start, case.seconds, case.outcome, facts)
    since = start
    for phase in case.phases:
        yield _slice(phase.when, worker, _TESTS, since, phase.seconds, phase.outcome, {"outcome": phase.outcome})
        since += phase.seconds * _MICROSECONDS
    for rank in case.ranks:
        facts = {"outcome": rank.outcome, "phase": rank.phase, "text": rank.text, "where": rank.where}
        yield _slice(case.case or case.id, worker, rank.rank + 1, start, rank.seconds, rank.outcome, facts)
    if case.outcome in RED:
        yield from _of_failure(case, worker, end)


def _of_failure(case: CaseLine, worker: int, end: float) -> Iterator[Event]:
    """What each rank did at the end, the ranks to blame, and an arrow to the first of them from each other rank."""
    for stance in case.rollcall:
        for rank in stance.ranks:
            facts = {"frames": stance.frames}
            yield _mark(stance.doing, worker, rank + 1, end, facts)
    if case.blame is None or not case.blame.ranks:
        return
    blamed = case.blame.ranks
    for rank in blamed:
        yield _mark(f"to blame: {case.blame.rule}", worker, rank + 1, end, {"id": case.id})
    for rank in (rank for stance in case.rollcall for rank in stance.ranks if rank not in blamed):
        arrow = {"cat": "waits", "name": "waits for", "pid": worker, "id": f"{case.world} {case.id} {rank}"}
        yield {**arrow, "ph": "s", "tid": rank + 1, "ts": end - 1}
        yield {**arrow, "ph": "f", "bp": "e", "tid": blamed[0] + 1, "ts": end}


def _slice(
    name: str, worker: int, track: int, start: float, seconds: float, outcome: str, facts: dict[str, Any]
) -> Event:
    event = {"ph": "X", "name": name, "cat": outcome, "pid": worker, "tid": track, "ts": round(start, 1)}
    return {**event, "dur": round(seconds * _MICROSECONDS, 1), "args": _known(facts)}


def _mark(name: str, worker: int, track: int, time: float, facts: dict[str, Any]) -> Event:
    event = {"ph": "i", "s": "t", "name": name, "cat": "failure", "pid": worker, "tid": track}
    return {**event, "ts": round(time, 1), "args": _known(facts)}


def _known(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value}
