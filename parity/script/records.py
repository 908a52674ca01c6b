"""Compare records that `observe` has left: the same judge as the command's, on trainings that others have started."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from everyrank.parity.errors import Unusable
from everyrank.parity.script.command import AGREE
from everyrank.parity.script.kept import Kept
from everyrank.parity.script.report import Beside, collected, judged, ranks_of
from everyrank.parity.script.runs import Run
from everyrank.suites.compare.patterns.texts import ranks_text

#: Clocks of hosts may differ by this, in seconds.
_SKEW = 60.0
#: How a line begins that has an option of the command, which no record knows.
_HINT = "\n  --"


@dataclass(frozen=True)
class Compared:
    """What is known of two records or more."""

    code: int
    """0 if they are the same training, 1 if they part, 2 if it cannot be said: as the command's exit code."""
    text: str
    besides: Sequence[Beside] = field(default_factory=tuple, repr=False)

    __module__ = "everyrank.parity"

    @property
    def passed(self) -> bool:
        return self.code == AGREE

    def __str__(self) -> str:
        return self.text


def compare(reference: str | Path, *others: str | Path, moved: str | Path | None = None) -> Compared:
    """Compare the records in these folders with that of the reference, usually one rank's.

    ``moved`` is another record of the reference, of ``observe(..., moved=True)``: it shows how far off rounding is.
    """
    if not others:
        raise Unusable(f"a record is compared with another: name one beside {reference}")
    folders = [Path(each) for each in (reference, *others)]
    runs = [_read(each) for each in folders]
    again = None if moved is None else _read(Path(moved))
    _check(folders, runs, moved, again)
    alike = len({run.size for run in runs}) < len(runs)
    names = [f"{ranks_of(run)}{f' of {folder}' if alike else ''}" for run, folder in zip(runs, folders, strict=True)]
    most = max(len(run.steps) for run in runs)
    code, lines, besides = judged(_script(runs), [*zip(names, runs, strict=True)], again, most)
    besides = [replace(each, lines=[_without_hint(line) for line in each.lines]) for each in besides]
    return Compared(code, "\n".join(_without_hint(line) for line in lines), besides)


def _read(folder: Path) -> Run:
    """Return the record of a folder; refuse what is none, or not whole."""
    found = {rank: facts for rank in ranks_of_record(folder) if (facts := _kept(folder, rank).facts()) is not None}
    if not found:
        kind = "holds no record of everyrank.parity.observe()" if folder.is_dir() else "does not exist"
        raise Unusable(f"{folder} {kind}")
    sizes = sorted({facts.size for facts in found.values()})
    if len(sizes) > 1:
        worlds = " and of ".join(f"{size}" for size in sizes)
        raise Unusable(
            f"{folder} holds ranks of several trainings, in worlds of {worlds}: remove it, and record again"
        )
    if lost := [rank for rank in range(sizes[0]) if rank not in found]:
        raise Unusable(
            f"{folder} has no record of {ranks_text(lost)} of {sizes[0]}: each process has a with block of its own, "
            "and comes to its end"
        )
    if max(each.began for each in found.values()) > min(each.ended for each in found.values()) + _SKEW:
        raise Unusable(f"{folder} holds ranks of several trainings, at other times: remove it, and record again")
    run = collected([_kept(folder, rank) for rank in range(sizes[0])], str(folder))
    if isinstance(run, str):
        raise Unusable(run)
    return run


def ranks_of_record(folder: Path) -> list[int]:
    """Return the ranks that have left a record in a folder."""
    names = [each.name.removeprefix("rank-") for each in folder.glob("rank-*")]
    return sorted(int(name) for name in names if name.isdecimal())


def _kept(folder: Path, rank: int) -> Kept:
    return Kept(folder / f"rank-{rank}")


def _check(folders: Sequence[Path], runs: Sequence[Run], moved: str | Path | None, again: Run | None) -> None:
    """Refuse records that cannot be of one training."""
    for folder, run in zip(folders, runs, strict=True):
        if run.facts[0].moved:
            raise Unusable(f"{folder} was recorded with moved=True, which is for the record of moved= alone")
    if again is not None and not again.facts[0].moved:
        raise Unusable(f"{moved} was not recorded with moved=True, so it does not show how far off rounding is")
    if again is not None and again.size != runs[0].size:
        raise Unusable(f"{moved} is of {ranks_of(again)}, and the reference {folders[0]} of {ranks_of(runs[0])}")
    others = [*zip(folders[1:], runs[1:], strict=True), *([(Path(str(moved)), again)] if again is not None else [])]
    for folder, run in others:
        if not _weights(run) & _weights(runs[0]):
            raise Unusable(
                f"{folder} is of another script: its {_model(run)} has no weight by the name of one of the "
                f"{_model(runs[0])} of {folders[0]}"
            )


def _weights(run: Run) -> set[str]:
    moments = [moment for step in run.steps for rank in step.moments for moment in rank]
    return {name for moment in moments if moment.kind in ("weight", "parameter") for name in moment.parts}


def _model(run: Run) -> str:
    return next(iter(run.facts[0].modules), "model")


def _script(runs: Sequence[Run]) -> str:
    """Return the names of the scripts, the reference's last."""
    names = dict.fromkeys(run.facts[0].script or "a notebook" for run in (*runs[1:], runs[0]))
    return " beside ".join(names)


def _without_hint(line: str) -> str:
    return line.partition(_HINT)[0]
