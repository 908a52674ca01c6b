"""What a user reads: the first line says what parts first, or why nothing can be said."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from everyrank.parity.script import first_test, written
from everyrank.parity.script.certain import fault as certain_fault
from everyrank.parity.script.command import AGREE, PART, UNKNOWN
from everyrank.parity.script.compare import Comparison
from everyrank.parity.script.data import compared
from everyrank.parity.script.kept import Facts, Kept
from everyrank.parity.script.parting import SUBJECTS, lines_of
from everyrank.parity.script.runs import Run, Step
from everyrank.parity.script.start import Size
from torch import Tensor

#: What is to be a number; gradients at a clip need not: a GradScaler leaves out the step then.
_NUMBERS = {"loss": "the loss"} | {kind: SUBJECTS[kind][0] for kind in ("gradient", "parameter")}

_ROUNDING = (
    "they part, maybe by rounding, maybe because the reference is not the same each time: that is known only beside "
    "another record of the reference, made by observe(..., moved=True). What parts first:"
)


@dataclass(frozen=True)
class Beside:
    """What is said of one size beside the reference."""

    ranks: int
    code: int
    lines: list[str]
    comparison: Comparison | None = None
    is_late: bool = False


def report(sizes: Sequence[Size], moved: Size, steps: int) -> tuple[int, list[str], list[Beside]]:
    """Return the exit code, the lines, and what is said of each size beside the first."""
    script, others = sizes[0].script, [size.ranks for size in sizes[1:]]
    runs = []
    for size in sizes:
        run = read(size)
        if isinstance(run, str):
            return nothing_known(script, others, run, any(each.late for each in sizes))
        runs.append((ranks_of(size), run))
    again = read(moved)
    if isinstance(again, str):
        return nothing_known(script, others, f"not alike twice: a second run of {again}", moved.late)
    return judged(script, runs, again, steps)


def judged(
    script: str, runs: Sequence[tuple[str, Run]], again: Run | None, steps: int
) -> tuple[int, list[str], list[Beside]]:
    """Return the exit code, the lines, and what is said of each run beside the first; each has a name for users.

    ``again`` is another run of the first, with weights that are moved by a rounding; if there is none, what may be
    rounding is not said to part.
    """
    head = f"everyrank parity: {script}, "
    (called, truth), *others = runs
    problem = _no_number(truth, called) or (_not_again(truth, again, called) if again is not None else "")
    if problem:
        return nothing_known(script, [run.size for _, run in others], problem)
    code, lines, besides = AGREE, [], []
    for name, run in others:
        comparison = Comparison(truth, run, again, called)
        found, text = _beside(comparison, truth, run, again, called, steps)
        besides.append(Beside(run.size, found, text, comparison))
        code = PART if PART in (code, found) else max(code, found)
        first, *more = text
        lines += [f"{head}{name} and {called}: {first}", *more]
    lines += _notes([run for _, run in runs])
    if code == PART:
        lines.append(
            "  a file with a test that compares each output and gradient with one process, in fp64, to begin with:"
        )
        lines += ["", *first_test.lines(truth.facts[0], script, others[-1][1].size), ""]
    return code, lines, besides


def nothing_known(
    script: str, others: Sequence[int], text: str, is_late: bool = False
) -> tuple[int, list[str], list[Beside]]:
    """Return what is returned of sizes of which nothing can be said."""
    besides = [Beside(size, UNKNOWN, [text], is_late=is_late) for size in others]
    return UNKNOWN, [f"everyrank parity: {script}, {text}"], besides


def ranks_of(size: Size | Run) -> str:
    number = size.ranks if isinstance(size, Size) else size.size
    return "one rank" if number == 1 else f"{number} ranks"


def read(size: Size) -> Run | str:
    """Return what a size has kept, or why there is nothing to compare."""
    called = ranks_of(size)
    if size.late:
        lines = [_verdict(size), "the time limit was over: --limit SECONDS gives more"]
        return f"{called}: " + "\n".join(filter(None, lines))
    if narrow := _not_in_double(size):
        return f"{called}: {narrow}"
    if size.trouble and any("EOFError: EOF when reading a line" in size.output(rank) for rank in size.statuses):
        return f"{called}: the script reads standard input, and here it has none"
    if size.trouble:
        again = "\nit ran in double (--fp64): does it run without?" if size.in_double else ""
        return f"{called}: {_verdict(size)}\n{_tail(size)}".rstrip() + again
    return collected([Kept(size.folder / f"rank-{rank}") for rank in range(size.ranks)], called)


def collected(kept: Sequence[Kept], called: str) -> Run | str:
    """Return what the ranks of a size have kept, or why there is nothing to compare."""
    facts = [each.facts() for each in kept]
    found = [each for each in facts if each is not None]
    if len(found) < len(kept):
        return f"{called}: the script ended and never imported torch: it trains nothing"
    rounds = [each.rounds for each in found]
    if not any(rounds):
        return f"{called}: {nothing(found)}"
    if len(set(rounds)) > 1:
        each = ", ".join(f"{count} on rank {rank}" for rank, count in enumerate(rounds))
        return f"{called}: ranks ended after different numbers of optimizer steps ({each})"
    steps = []
    for number in range(1, rounds[0] + 1):
        data = [each.read(number) for each in kept]
        if any(each is None for each in data):
            return f"{called}: step {number} was kept on some ranks alone"
        steps.append(Step([each[0] for each in data if each], [each[1] for each in data if each]))
    return Run(found, steps)


def nothing(facts: Sequence[Facts]) -> str:
    """Return why there was no optimizer's step."""
    modules = [name for each in facts for name in each.modules]
    if any(each.optimizers for each in facts):
        return "the script ended in its first optimizer step"
    if any(each.backwards for each in facts):
        return "the script calls backward, and no optimizer of torch's: steps by other means are not seen"
    if modules:
        return f"the script calls {modules[0]} in training, and ends without a backward: it trains nothing"
    return "the script ended without a module in training and without an optimizer's step: it trains nothing"


def _not_in_double(size: Size) -> str:
    """Return what was to be in double on a rank, and is not."""
    facts = [Kept(size.folder / f"rank-{rank}").facts() for rank in range(size.ranks)]
    narrow = [text for each in facts if each is not None for text in each.narrow]
    if not narrow:
        return ""
    return f"not in double, so nothing is said: {narrow[0]}\nleave that out of the script, or --fp64"


def _verdict(size: Size) -> str:
    """Return what the harness says of ranks that have not ended well, the roll call among it."""
    return size.trouble.removeprefix(f"{size.script} on {size.ranks} ranks: ").removeprefix(f"{size.script}: ")


def _tail(size: Size) -> str:
    """Return the end of the output of the rank that failed first."""
    for rank, status in sorted(size.statuses.items()):
        if status and (lines := size.output(rank).rstrip().splitlines()):
            return "\n".join([f"the end of rank {rank}'s output:", *(f"    {line}" for line in lines[-8:])])
    return ""


def _no_number(truth: Run, called: str) -> str:
    """Return where the reference itself first has nan or inf in what it trains with."""
    moments = ((number, each) for number, step in enumerate(truth.steps, 1) for rank in step.moments for each in rank)
    for number, moment in moments:
        for name, part in moment.parts.items() if moment.kind in _NUMBERS else ():
            if not part.values.isfinite().all():
                kind = "nan" if part.values.isnan().any() else "inf"
                subject = _NUMBERS[moment.kind].format(name)
                text = f"step {number}: {subject} is {kind} ({moment.line})"
                return f"{called}: {text}, without any more ranks: mend that first"
    return ""


def _not_again(truth: Run, again: Run, called: str) -> str:
    """Return how two runs of the reference differ, if they are to be the same."""
    first, second = truth.steps[0], again.steps[0]
    if first.rows != second.rows:
        return f"{called}: two runs are given other rows in step 1: seed the shuffle, and what is made up"
    for mine, other in zip(first.moments, second.moments, strict=True):
        for kind in ("weight", "buffer"):
            parts, others = (
                {name: part for moment in each if moment.kind == kind for name, part in moment.parts.items()}
                for each in (mine, other)
            )
            for name, part in parts.items():
                if name in others and not _alike(part.values, others[name].values):
                    return f"{called}: two runs begin with other values of {kind} `{name}`: set a seed"
    return ""


def _alike(values: Tensor, other: Tensor) -> bool:
    return bool(values.shape == other.shape and ((values == other) | (values != values)).all())


def _beside(
    comparison: Comparison, truth: Run, run: Run, again: Run | None, called: str, steps: int
) -> tuple[int, list[str]]:
    """Return what is said of one size beside the reference."""
    rows = compared(truth, run, called)
    faults = [*([rows.text] if rows.is_fault else []), *(fault for each in run.facts for fault in each.faults)]
    parting = comparison.parting(rows.steps)
    chance = "" if parting is None or parting.subject.startswith(("weight", "learning")) else _by_design(truth, run)
    if parting is not None and chance:
        certain = certain_fault(truth, run, again, called, rows.steps)
        if faults := faults[:1] if certain is None else [*lines_of(certain)]:
            return PART, [faults[0], f"  the rest cannot be compared: {chance}", *faults[1:]]
        return UNKNOWN, [f"{chance}. What parts first:", *(f"  {line}" for line in lines_of(parting))]
    if parting is not None and comparison.may_be_rounding and not comparison.has_moved:
        return UNKNOWN, [_ROUNDING, *(f"  {line}" for line in lines_of(parting))]
    if parting is not None:
        text = [*lines_of(parting), *([f"  {rows.remark}"] if rows.remark else [])]
        if (comparison.may_be_rounding or comparison.is_small) and comparison.dtype != "fp64":
            text[-1] += "\n  --fp64 runs it all in double: if they part there, too, it is no rounding"
        return PART, text
    if faults:
        return PART, [faults[0]]
    if rows.text:
        return UNKNOWN, [rows.text]
    if not comparison.compared["gradient"] or not comparison.compared["parameter"]:
        few = ", ".join(comparison.missing[:3])
        return UNKNOWN, [f"no gradient or no parameter has the shape of {called}'s, so nothing is shown: {few}"]
    number = f"{rows.steps} step{'' if rows.steps == 1 else 's'}"
    lines = [f"the same training, in {number} ({comparison.compared.total()} tensors compared)"]
    if rows.steps < steps:
        lines.append(f"  the script ended after {number}")
    lines += [f"  {rows.remark}"] if rows.remark else []
    if comparison.missing:
        more = f" and {len(comparison.missing) - 5} more" if len(comparison.missing) > 5 else ""
        lines.append(f"  not compared: {', '.join(comparison.missing[:5])}{more}")
    return AGREE, lines


def _by_design(truth: Run, run: Run) -> str:
    """Return why sizes may part though the script is right; empty if nothing is known that lets them."""
    if run.facts[0].batch_norms:
        names = ", ".join(f"`{name}`" for name in run.facts[0].batch_norms[:3])
        return (
            f"each rank's batch norm ({names}) normalizes by its own rows, by design, and trains something else than "
            f"{ranks_of(truth)}: put the norms into .eval() for this run"
        )
    if truth.facts[0].draws or run.facts[0].draws:
        return (
            "the model draws random numbers in its forward, and each rank its own, as dropout does by design: set it "
            "to 0 for this run"
        )
    return ""


def _notes(runs: Sequence[Run]) -> Iterator[str]:
    if runs[0].facts[0].wide:
        yield "  run in double at every size (--fp64)"
    seen = dict.fromkeys(note for run in runs for each in run.facts for note in each.notes)
    for note in seen:
        yield f"  {note}"
    yield from (f"  {remark}" for remark in written.remarks([run.facts[0].written for run in runs]))
