"""What a handover has done: of which elements the other is made, whether it gives the same, and if not, why."""

from __future__ import annotations

from typing import Any

import torch
from everyrank.model.counts import count
from everyrank.parity.handed.given import Pair, held, wide
from everyrank.parity.handed.lost import covered, lost
from everyrank.parity.handed.outputs import Run, agree, first_module, run, where_they_part
from everyrank.parity.handed.repairs import Made, Repair, out_of_order, repairs
from everyrank.parity.handed.report import Handover, Misfit
from everyrank.parity.handed.trace import (
    MIXED,
    NOTHING,
    Handed,
    Rounded,
    Sources,
    Traced,
    checked,
    hand_over,
    sources_of,
    trace,
)
from everyrank.parity.setup.ranks import Ranks
from everyrank.suites.compare.patterns.texts import index_text, short

#: How many parts of a tensor's origin are named.
_PARTS = 4


class Trial:
    """The other module, run with the weights that it has without a mistake."""

    def __init__(self, pair: Pair, handed: Handed) -> None:
        self._pair, self._flat, self._other = pair, handed.flat, handed.other
        self._values = dict(held(self._other))

    @torch.no_grad()
    def run(self, repair: Repair) -> Run:
        """Run it, and put back what it had."""
        before = {name: self._values[name].clone() for name in repair.made}
        for name, each in repair.made.items():
            right = each.values(self._flat).to(before[name])
            self._values[name].copy_(torch.where(right.isnan(), before[name], right))
        try:
            return run(self._pair, self._other, True, inside=False)
        finally:
            for name, values in before.items():
                self._values[name].copy_(values)


def judged(pair: Pair, ranks: Ranks | None) -> Handover:
    """Hand over, compare, and return the report; every rank calls it."""
    __tracebackhide__ = True
    sources = sources_of(pair)
    handed = hand_over(pair)
    traced, rounded = checked(trace(pair, sources), handed)
    made = {each.name: each for each in traced}
    every: list[Made] = _gather(ranks, made)
    expected, mine = run(pair, handed.model, False), run(pair, wide(handed.other), True)
    agrees = all(_gather(ranks, agree(mine, expected)))
    has = covered(sources, every)
    findings = lost(pair, sources, every, has, agrees)
    for each in dict.fromkeys(known for of_rank in _gather(ranks, rounded) for known in of_rank):
        findings.append(_rounded(each, every))
    remarks = []
    if mixed := [name for name, each in made.items() if bool((each.numbers == MIXED).any())]:
        remarks.append(f"made of several elements, and so compared by outputs alone: {', '.join(mixed[:_PARTS])}")
    if not findings:
        findings = _of_outputs(pair, sources, handed, every, expected, mine, agrees, ranks)
    origins = tuple(_origin(sources, each) for each in traced)
    return Handover(tuple(findings), origins, sources.total, int(has.sum()), tuple(remarks))


def _gather(ranks: Ranks | None, value: Any) -> list[Any]:
    return [value] if ranks is None else ranks.gather(value)


def _rounded(found: Rounded, every: list[Made]) -> Misfit:
    shape = next(made[found.name].numbers.shape for made in every if found.name in made)
    index = index_text(found.first, shape)
    words = f"`{found.name}`{index} of the other has gone through {short(found.dtype)}"
    return Misfit("rounded", found.name, index, f"{words}, as {found.count} of its {count(shape.numel(), 'element')}")


def _of_outputs(
    pair: Pair,
    sources: Sources,
    handed: Handed,
    every: list[Made],
    expected: Run,
    mine: Run,
    agrees: bool,
    ranks: Ranks | None,
) -> list[Misfit]:
    """Return the mistake that explains that outputs part, or where they do; of those that agree, what they hide."""
    parting = None if agree(mine, expected) else (where_they_part(mine, expected), first_module(pair, mine, expected))
    words, first = next((each for each in _gather(ranks, parting) if each is not None), ("agree", None))
    name = first.name if first is not None else ""
    tried = out_of_order(every[0]) if agrees else repairs(every[0], sources, name)
    trial = Trial(pair, handed)
    for repair in tried if all(_alike(every[0], each) for each in every) else ():
        if all(_gather(ranks, agree(trial.run(repair), mine if agrees else expected))):
            shown = "inputs= show no difference" if agrees else f"the outputs {words}, and agree without it"
            return [_moved(sources, every[0], repair, shown)]
    if agrees:
        return []
    for tensor, each in every[0].items():
        if tensor.startswith(f"{name}.") and bool((each.numbers == NOTHING).any()):
            index = index_text(int((each.numbers == NOTHING).reshape(-1).nonzero()[0]), each.numbers.shape)
            return [
                Misfit(
                    "built", tensor, index, f"`{tensor}`{index} of the other is as it was built; the outputs {words}"
                )
            ]
    position = first.words() if first is not None else "and each module that both have agrees"
    return [Misfit("outputs", name, "", f"the outputs {words}; {position}")]


def _alike(made: Made, other: Made) -> bool:
    return {*made} == {*other} and all(torch.equal(made[name].numbers, other[name].numbers) for name in made)


def _moved(sources: Sources, before: Made, repair: Repair, shown: str) -> Misfit:
    """Return what a mistake is, with the first element that it has moved."""
    changed = repair.first_changed(before)
    assert changed is not None
    name, flat = changed
    was, now = (int(each[name].numbers.reshape(-1)[flat]) for each in (before, repair.made))
    index = index_text(flat, before[name].numbers.shape)
    if was == now:
        factor, summand = (float(each.reshape(-1)[flat]) for each in (before[name].factor, before[name].summand))
        words = (
            f"is {sources.text(was)} times {factor:.4g}{f' plus {summand:.4g}' if summand else ''}: {repair.words}"
        )
    else:
        words = f"has {sources.text(was)} where {sources.text(now)} belongs: {repair.words}"
    return Misfit("moved", name, index, f"`{name}`{index} of the other {words}; {shown}")


def _origin(sources: Sources, each: Traced) -> str:
    """Return of which tensors of the model a tensor of the other is made, as a line."""
    parts: list[str] = []
    rows = each.numbers.reshape(len(each.numbers), -1) if each.numbers.ndim else each.numbers.reshape(1, 1)
    for row in rows[:, 0].tolist() if rows.numel() else ():
        name = sources.name(row) if row >= 0 else "nothing" if row != MIXED else "several"
        if parts[-1:] != [name]:
            parts.append(name)
    more = f" and {len(parts) - _PARTS} more parts" if len(parts) > _PARTS else ""
    return f"{each.name} has {', '.join(parts[:_PARTS])}{more}"
