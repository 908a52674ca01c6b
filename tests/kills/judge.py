"""Whether what a run reports is true of a run in which these processes were killed. Pure: it sees no process.

A test that no kill touched has its true outcome. A test that a kill touched has it too, or is red with a reason that
names the kill. A failing test is never green. The run ends, with an exit status that fits, and leaves nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tests.kills.truth import Truth

#: A process whose parent has died may live for this many seconds more, and a worker's report may travel so long.
SLACK = 0.02

#: Outcomes of tests that a run which was ended did not finish.
_NOT_FINISHED = ("interrupted", "not-run")


@dataclass(frozen=True)
class Kill:
    """A process that was killed."""

    role: str
    pid: int
    signal: str
    sent: float
    gone: float  # when it, and all that die with it, had ended; infinite if that was not seen
    ends_run: bool = False  # what the run goes on without is not this: its controller, an agent of torchrun, ...


@dataclass(frozen=True)
class Span:
    """A test as the controller ran it: from its start to its end (infinite, if that was not seen)."""

    test: str
    controller: int
    began: float
    ended: float = math.inf
    ranks: Mapping[int, float] = field(default_factory=dict)  # when each pid has begun it


@dataclass(frozen=True)
class Line:
    """A test's line of the run file."""

    test: str
    outcome: str
    message: str
    text: str = ""


@dataclass(frozen=True)
class Seen:
    """All that was seen of a run."""

    kills: Sequence[Kill]
    spans: Sequence[Span]
    lines: Sequence[Line]
    status: int | None  # the exit status; None: it did not end
    has_footer: bool
    output: str = ""
    left: Sequence[str] = field(default=())


def judge(seen: Seen, truths: Mapping[str, Truth]) -> list[str]:
    """Return what is wrong, in sentences."""
    found = [*_ends(seen), *(f"left behind: {thing}" for thing in seen.left)]
    for line in seen.lines:
        found += _line(line, seen, truths[line.test])
    found += _counted(seen, truths)
    return found


def _ends(seen: Seen) -> Iterator[str]:
    if seen.status is None:
        yield "the run did not end"
        return
    if "INTERNALERROR" in seen.output:
        yield "the run reports an internal error of pytest"
    ending = [kill for kill in seen.kills if kill.ends_run]
    if seen.status == 0:
        yield "the run is green, and has tests that fail"
    elif not ending and seen.status != 1 and not _refused_to_start(seen):
        yield f"the exit status is {seen.status}, and nothing was killed that the run needs"


def _refused_to_start(seen: Seen) -> bool:
    """Return whether the keeper was killed before the first test, and pytest says so as a wrong use (4)."""
    return (
        seen.status == 4
        and not seen.spans
        and bool(seen.kills)
        and _reason_for(seen.kills).search(seen.output) is not None
    )


def _line(line: Line, seen: Seen, truth: Truth) -> Iterator[str]:
    kills = [_certain(kill, seen) for kill in _touching(line.test, truth, seen)]
    name = f"{line.test} is {line.outcome!r}"
    if line.outcome == truth.outcome and truth.message in line.message:
        return
    if not kills:
        yield f"{name} ({line.message[:200]}), no kill touched it, and it is {truth.outcome!r} in truth"
    elif line.outcome in _NOT_FINISHED:
        if not any(kill.ends_run for kill in kills):
            yield f"{name}, and nothing was killed that ends the run"
    elif line.outcome not in ("crash", "fail", "error", "timeout"):
        yield f"{name}, which is neither its true outcome, {truth.outcome!r}, nor red"
    elif not _reason_for(kills).search(f"{line.message}\n{line.text}"):
        yield f"{name} with a reason that names no kill: {line.message[:300]}"


def _touching(test: str, truth: Truth, seen: Seen) -> Iterator[Kill]:
    """Yield the kills that may change the outcome of a test."""
    spans = [span for span in seen.spans if span.test == test]
    for kill in seen.kills:
        later = kill.ends_run and (not spans or spans[-1].ended + SLACK >= kill.sent)
        if later or any(_overlap(kill, span, truth) for span in spans):
            yield kill


def _certain(kill: Kill, seen: Seen) -> Kill:
    """Return a kill with its role, if that is certain: a successor that has forked no rank yet looks like a rank."""
    is_rank = kill.role != "rank" or any(kill.pid in span.ranks for span in seen.spans)
    return kill if is_rank else replace(kill, role="successor")


def _overlap(kill: Kill, span: Span, truth: Truth) -> bool:
    if span.began > kill.gone + SLACK or span.ended + SLACK < kill.sent:
        return False
    if kill.role != "rank" or kill.pid in span.ranks:
        return True
    # If all ranks of the test had begun, this rank was another's: it was forked ahead for the next test, perhaps. A
    # test that is run again has begun on a multiple of its ranks.
    begun = sum(began < kill.sent for began in span.ranks.values())
    return not begun or begun % truth.size != 0


def _reason_for(kills: Sequence[Kill]) -> re.Pattern[str]:
    """Return what a reason must have that names one of these kills."""
    texts = {rf"killed by {kill.signal}" for kill in kills}
    if any(kill.signal == "SIGSTOP" for kill in kills):
        texts.add("missed its deadline")
    if any(kill.role not in ("rank", "successor") for kill in kills):
        texts |= {"killed by SIGKILL", "is gone", r"actor of Ray did not start", r"Ray's actor \d+ ended before"}
    if any(kill.role == "successor" for kill in kills):  # its ranks die with it
        texts.add("killed by SIGKILL")
    if any(kill.role == "worker" for kill in kills):
        texts.add("crashed while running")
    if any(kill.ends_run for kill in kills):
        texts |= {"SIGTERM interrupted", "Ray cluster"}
    return re.compile("|".join(sorted(texts)))


def _counted(seen: Seen, truths: Mapping[str, Truth]) -> Iterator[str]:
    """Yield what is missing in the run file, or stands in it twice."""
    names = [line.test for line in seen.lines]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"{name} stands in the run file {names.count(name)} times"
    if any(kill.ends_run for kill in seen.kills) or seen.status is None or _refused_to_start(seen):
        return
    if not seen.has_footer:
        yield "the run file has no footer"
    for name, truth in truths.items():
        if truth.size and name not in names:
            yield f"{name} has no line in the run file"
