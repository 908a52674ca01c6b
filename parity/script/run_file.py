"""Write what a command has found as a run file: a test for each size beside the reference."""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from everyrank.model.outcome import Ending
from everyrank.model.parity import NAMES, ParityFaultPart, ParityPart, ParityPassPart
from everyrank.parity.script.command import AGREE, PART
from everyrank.parity.script.compare import Comparison
from everyrank.parity.script.figures import row_of
from everyrank.parity.script.report import Beside
from everyrank.reports.live.host import installed
from everyrank.reports.runfile.model import SCHEMA, CaseLine, Footer, Header
from everyrank.reports.runfile.source import source_of
from everyrank.reports.runfile.write import RunFile
from everyrank.suites.compare.patterns.fit import PATTERNS


@dataclass(frozen=True)
class Command:
    """What was asked for, and when."""

    script: str
    arguments: Sequence[str]
    started: float
    seconds: float
    besides: Sequence[Beside] = field(default_factory=tuple)


def write(file: RunFile, command: Command) -> None:
    """Write the header, a line for each size, and the footer."""
    ids = [f"{command.script}::parity[ws{each.ranks}]" for each in command.besides]
    file.write(
        Header(
            schema=SCHEMA,
            kit=installed("everyrank"),
            torch=installed("torch"),
            python=platform.python_version(),
            platform=platform.platform(),
            started=command.started,
            launcher="script",
            backends=["gloo"],
            command=["everyrank", "parity", *command.arguments],
            **vars(source_of(Path.cwd(), os.environ)),
            cases=ids,
        )
    )
    lines = [_line(id, each, command) for id, each in zip(ids, command.besides, strict=True)]
    for line in lines:
        file.write(line)
    failed = any(each.code != AGREE for each in command.besides)
    file.write(Footer(dict(Counter[str](line.outcome for line in lines)), command.seconds, int(failed)))
    file.close()


def _line(id: str, beside: Beside, command: Command) -> CaseLine:
    outcome: Ending = "timeout" if beside.is_late else "error"
    if beside.code in (AGREE, PART):
        outcome = "pass" if beside.code == AGREE else "fail"
    text = "\n".join(beside.lines)
    first = text.partition("\n")[0]
    return CaseLine(
        id=id,
        outcome=outcome,
        message=first if outcome != "pass" else "",
        text=text if outcome != "pass" else "",
        size=beside.ranks,
        started=command.started,
        seconds=command.seconds,
        parity=[_call(beside, beside.comparison, first)] if beside.comparison is not None else [],
        parity_calls=int(beside.comparison is not None),
    )


def _call(beside: Beside, comparison: Comparison, first: str) -> ParityPart:
    comparison.look_on()
    found = comparison.found
    names = tuple(dict.fromkeys(row_of(found.kind, each)[1] for each in found.names)) if found and found.kind else ()
    mark = (found.step - 1, row_of(found.kind, "")[0], names) if found and found.kind else None
    rows, begin = comparison.figures.rows(mark)
    values = {(row.kind, row.tensor): row for row in rows}
    compared, tensors = comparison.figures.counts
    steps = max((begin - 1 + len(row.errors) for row in rows), default=0)
    faults = []
    if beside.code != AGREE:
        kind, tensor = (mark[1], names[0]) if mark else ("", "")
        row = values.get((kind, tensor))
        worst = _worst(row.errors, row.limits) if row is not None else (0.0, 0.0)
        faults.append(
            ParityFaultPart(
                kind,
                tensor,
                found.step if found and kind != "initialization" else 0,
                first,
                *worst,
                found.pattern if found else "",
                PATTERNS[found.pattern].sentence if found and found.pattern else "",
                same=list(names[1 : NAMES + 1]),
                same_left_out=max(0, len(names) - 1 - NAMES),
            )
        )
    missing = comparison.missing
    return ParityPart(
        compared,
        tensors,
        [comparison.dtype],
        beside.ranks,
        steps,
        "as the script does it",
        faults,
        [ParityPassPart(comparison.dtype, rows, begin, steps, tensors - len(rows))] if rows else [],
        not_compared=missing[:NAMES],
        not_compared_left_out=max(0, len(missing) - NAMES),
        remarks=[line.strip() for each in beside.lines for line in each.splitlines()][1:][:NAMES],
    )


def _worst(errors: Sequence[float | None], limits: Sequence[float]) -> tuple[float, float]:
    every = list(limits) * len(errors) if len(limits) == 1 else list(limits)
    pairs = [(error, limit) for error, limit in zip(errors, every, strict=False) if error is not None]
    return max(pairs, key=lambda pair: pair[0] / pair[1] if pair[1] else pair[0], default=(0.0, 0.0))
