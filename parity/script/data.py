"""Have the ranks of a size been given the rows that the reference was given? What is not shown is not compared."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from everyrank.parity.script.runs import Run
from everyrank.suites.compare.patterns.texts import ranks_text

#: How the note begins that --global-batch divides nothing.
IN_VAIN = "--global-batch divides no loader with a batch_sampler"
_GLOBAL_BATCH = "--global-batch divides the DataLoader's batch size by the number of ranks"
_SAME_DATA = "--same-data gives each rank its rows of one rank's batches"
_PARALLEL = ("DistributedDataParallel", "FullyShardedDataParallel")


@dataclass(frozen=True)
class Rows:
    """What is known of the rows of all steps."""

    steps: int
    """How many steps, from the first, have the same rows."""
    text: str = ""
    """What is to be said of the next step."""
    is_fault: bool = False
    """Whether that is wrong, whatever the data; else the sizes cannot be compared from there on."""
    remark: str = ""


def compared(reference: Run, other: Run, called: str) -> Rows:
    """Compare the rows that first modules saw, step by step."""
    remark = ""
    for step, (wanted, mine) in enumerate(zip(reference.steps, other.steps, strict=False)):
        truth = Counter(row for rank in wanted.rows for call in rank for row in call)
        ranks = [Counter(row for call in rank for row in call) for rank in mine.rows]
        together: Counter[str] = sum(ranks, Counter())
        number, size = step + 1, len(ranks)
        if not truth or not together:
            return Rows(
                step, f"the first module is given no tensor in step {number}: which rows it saw cannot be shown"
            )
        if together == truth:
            continue
        if size > reference.size and all(rank == truth for rank in ranks) and reference.size == 1:
            if set(_PARALLEL) & set(other.facts[0].wrappers):
                every = "both" if size == 2 else f"all {size}"
                return Rows(
                    step,
                    f"step {number}: {every} ranks train on the same {_rows(truth)}: no sampler deals them out, and "
                    f"{size} ranks do the work of one",
                    is_fault=True,
                )
            remark = f"each of {size} ranks saw all rows of {called}, as in tensor parallelism"
            continue
        if stages := _first_of_a_pipeline(truth, ranks, other):
            remark = f"ranks have other weights, as in a pipeline: {ranks_text(stages)} saw the rows of {called}"
            continue
        if (times := together.total() / truth.total()).is_integer() and together == Counter(
            {row: int(times) * count for row, count in truth.items()}
        ):
            remark = f"ranks saw the rows of {called}, each row on {int(times)} ranks"
            continue
        is_in_vain = any(note.startswith(IN_VAIN) for facts in other.facts for note in facts.notes)
        return _apart(step, truth, ranks, together, called, is_in_vain)
    return Rows(min(len(reference.steps), len(other.steps)), remark=remark)


def _first_of_a_pipeline(truth: Counter[str], ranks: list[Counter[str]], other: Run) -> list[int]:
    """Return the ranks with weights of their own that saw the rows: those of other stages see activations."""
    for names in dict.fromkeys(other.weights) if len(set(other.weights)) > 1 else ():
        found = [rank for rank, own in enumerate(other.weights) if own == names]
        if sum((ranks[rank] for rank in found), Counter()) == truth:
            return found
    return []


def _apart(
    step: int, truth: Counter[str], ranks: list[Counter[str]], together: Counter[str], called: str, is_in_vain: bool
) -> Rows:
    number, size = step + 1, len(ranks)
    twice = [rank for rank in range(1, size) if ranks[rank] == ranks[0]]
    if len(twice) == size - 1 and ranks[0].total() < truth.total() and not ranks[0] - truth:
        unseen = truth - ranks[0]
        return Rows(
            step,
            f"step {number}: {ranks_text(range(size))} train on the same {_rows(ranks[0])}, and no rank on "
            f"{unseen.total()} of the {_rows(truth)} of {called}: no sampler deals them out",
            is_fault=True,
        )
    if together.total() != truth.total():
        many = " and ".join(str(count) for count in sorted({rank.total() for rank in ranks}))
        better = _GLOBAL_BATCH if together.total() == size * truth.total() and not is_in_vain else _SAME_DATA
        return Rows(
            step,
            f"step {number}: {size} ranks train on {together.total()} rows together ({many} on each), and "
            f"{called} on {truth.total()}: that is another training, and nothing can be said of it\n  {better}",
        )
    apart = (truth - together).total()
    both = " and ".join(f"{(rank - truth).total()} of rank {number}'s" for number, rank in enumerate(ranks))
    return Rows(
        step,
        f"step {number}: {apart} of the {_rows(truth)} of {called} are given to no rank ({both} are others): another "
        f"shuffle, another seed or random augmentation\n  {_SAME_DATA}",
    )


def _rows(rows: Counter[str]) -> str:
    return f"{rows.total()} row{'' if rows.total() == 1 else 's'}"
