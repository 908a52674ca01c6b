"""Make one run file of the run files of all shards."""

from __future__ import annotations

import gzip
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from everyrank.model.counts import count
from everyrank.reports.errors import NotOneRun
from everyrank.reports.runfile.model import (
    AnyLine,
    CaseLine,
    CrossedPart,
    Footer,
    Header,
    LeftOutPart,
    ShardPart,
    SinglePart,
)
from everyrank.reports.runfile.read import Run
from everyrank.reports.runfile.write import encoded

#: What one run has once, with its name in an error.
_SAME = {
    "kit": "everyrank",
    "torch": "torch",
    "python": "Python",
    "launcher": "the launcher",
    "seed": "--world-seed",
    "commit": "the commit",
}


def merge(runs: Sequence[Run], partial: bool = False) -> list[AnyLine]:
    """Return the lines of the whole run: header, cases and footer. Raise `NotOneRun` if the files are not of one run.

    With ``partial``, shards may be missing, or may have been killed. Then there is no footer, as in the file of any
    run that was killed.
    """
    shards = _in_order(runs)
    first = next(iter(shards.values()))
    missing = _missing(shards)
    if missing and not partial:
        raise NotOneRun(
            f"{_named(missing)} of {_part(first).count} {'is' if len(missing) == 1 else 'are'} missing; "
            "--partial merges the others"
        )
    header = _header(shards)
    cases = [_case(number, line) for number, run in shards.items() for line in run.reported]
    footers = {number: run.footer for number, run in shards.items() if run.footer is not None}
    whole = len(footers) == _part(first).count
    return [header, *cases, *([_footer(footers)] if whole else [])]


def missing(runs: Sequence[Run]) -> str:
    """Return what is missing of the whole run; an empty text if nothing is."""
    shards = _in_order(runs)
    missing = _missing(shards)
    killed = [number for number, run in shards.items() if run.footer is None]
    parts = [f"{_named(missing)} missing"] if missing else []
    return ", ".join(parts + ([f"{_named(killed)} killed"] if killed else []))


def _part(run: Run) -> ShardPart:
    if run.header.shard is None:
        raise NotOneRun(f"{run.path} is not of a shard: it was not run with --shard, or is merged already")
    return run.header.shard


def _missing(shards: dict[int, Run]) -> list[int]:
    return [number for number in range(1, _part(next(iter(shards.values()))).count + 1) if number not in shards]


def _in_order(runs: Sequence[Run]) -> dict[int, Run]:
    """Return the runs by the numbers of their shards. They must be of one run, each shard once."""
    if not runs:
        raise NotOneRun("no shard began to run its tests")
    first = runs[0]
    shards: dict[int, Run] = {}
    for run in runs:
        part = _part(run)
        other = shards.setdefault(part.number, run)
        if other is not run:
            raise NotOneRun(f"{run.path} is of shard {part.number}, and so is {other.path}")
        for key, name in _SAME.items():
            value, other_value = getattr(run.header, key), getattr(first.header, key)
            if value != other_value:
                raise NotOneRun(
                    f"{run.path} is not of one run with {first.path}: {name} is {value}, there {other_value}"
                )
        theirs = _part(first)
        if part.count != theirs.count:
            raise NotOneRun(
                f"{run.path} is not of one run with {first.path}: it is one of {count(part.count, 'shard')}, "
                f"the other of {theirs.count}"
            )
        if part.digest != theirs.digest:
            raise NotOneRun(
                f"{run.path} is not of one run with {first.path}: they collected other tests "
                f"({part.all_tests:,}, there {theirs.all_tests:,}), or were dealt by other times (--shard-times)"
            )
    return dict(sorted(shards.items()))


def _header(shards: dict[int, Run]) -> Header:
    headers = [run.header for run in shards.values()]
    return msgspec.structs.replace(
        headers[0],
        started=min(header.started for header in headers),
        devices=list(dict.fromkeys(device for header in headers for device in header.devices)),
        backends=list(dict.fromkeys(backend for header in headers for backend in header.backends)),
        command=_command(headers[0].command),
        workers=sum(header.workers for header in headers),
        subjects={name: file for header in headers for name, file in header.subjects.items()},
        dirty=any(header.dirty for header in headers),
        cases=[id for header in headers for id in header.cases],
        left_out=_left_out(headers),
        shard=None,
    )


def _command(command: Sequence[str]) -> list[str]:
    """Return the command line that runs all shards in one."""
    words: list[str] = []
    after_option = False
    for argument in command:
        if not after_option and argument.partition("=")[0] not in ("--shard", "--shard-times", "--run-file"):
            words.append(argument)
        after_option = argument in ("--shard", "--shard-times", "--run-file")
    return words


def _left_out(headers: Sequence[Header]) -> list[LeftOutPart]:
    """Return what filters left out: before the tests were dealt, so it is the same in every shard that has a case."""
    return next((header.left_out for header in headers if header.left_out), [])


def _case(number: int, line: CaseLine) -> CaseLine:
    """Return a line whose worker and world no other shard has."""
    prefix = f"shard{number}"
    world = f"{prefix}-{line.world}" if line.world else ""
    return msgspec.structs.replace(line, worker=f"{prefix}-{line.worker}".rstrip("-"), world=world)


def _footer(footers: dict[int, Footer]) -> Footer:
    """Return the footer of the whole. The shards ran side by side: the longest is as long as the run."""
    counts: Counter[str] = Counter()
    for footer in footers.values():
        counts.update(footer.counts)
    singles = [footer.single for footer in footers.values() if footer.single is not None]
    return Footer(
        counts=dict(counts),
        seconds=max(footer.seconds for footer in footers.values()),
        exit=max(footer.exit for footer in footers.values()),
        troubles=[f"shard {n}: {trouble}" for n, footer in footers.items() for trouble in footer.troubles],
        interrupted="; ".join(f"shard {n}: {f.interrupted}" for n, f in footers.items() if f.interrupted),
        single=_single(singles) if singles else None,
        crossings=_crossed(part for footer in footers.values() for part in footer.crossings),
    )


def _crossed(parts: Iterable[CrossedPart]) -> list[CrossedPart]:
    """Return for each subject the largest part of a shard: which of the pairs are the same, the parts do not say."""
    found: dict[tuple[str, str], CrossedPart] = {}
    for part in parts:
        key = part.contract, part.subject
        found[key] = max(found.get(key, part), part, key=lambda part: part.triples)
    return list(found.values())


def _single(parts: Sequence[SinglePart]) -> SinglePart:
    return SinglePart(
        passed=sum(part.passed for part in parts),
        failed=sum(part.failed for part in parts),
        skipped=sum(part.skipped for part in parts),
        failures=sorted(failure for part in parts for failure in part.failures),
    )


def _named(numbers: Sequence[int]) -> str:
    return f"shard{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"


def contents(lines: Sequence[AnyLine], path: Path) -> bytes:
    """Return the contents of a run file with this name."""
    data = b"".join(encoded(line) + b"\n" for line in lines)
    return gzip.compress(data) if path.suffix == ".gz" else data
