"""What training would have been if one rank had made a mistake in one step: a closed list.

An optimizer hides a wrong gradient: Adam makes nearly the same step of its double. So the whole training is repeated
in one process, with each mistake in turn, and the values are compared with those that were found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
from everyrank.fixtures.data import loss
from everyrank.suites.compare.pattern import Pattern, Values
from everyrank.suites.compare.reference import Gradients, Plan, mean, sum_in_order, take_gradients, train
from torch import nn

#: The properties of models some of whose parameters may have no gradient.
_WITHOUT_GRADIENTS = ("optional", "unused", "frozen")

#: The gradients of each microbatch of each rank: of one parameter, and of all.
Parts = list[list[torch.Tensor | None]]
AllParts = list[list[Gradients]]


def _total(parts: list[torch.Tensor | None]) -> torch.Tensor | None:
    found = [part for part in parts if part is not None]
    return sum_in_order(found) if found else None


def _mean(parts: Parts, rank: int = 0) -> torch.Tensor | None:
    return mean([_total(own) for own in parts])


def _times(gradient: torch.Tensor | None, number: float) -> torch.Tensor | None:
    return None if gradient is None else gradient * number


def _first_reduced_twice(parts: Parts, rank: int) -> torch.Tensor | None:
    """Reduce the accumulated gradient after each microbatch, by a sum whose parts were divided before."""
    last = mean([own[-1] for own in parts])
    before = _times(_mean([own[:-1] for own in parts]), len(parts))
    return _total([before, last])


def _power(number: int) -> int:
    """Return the power of two that is this number, or the next above it."""
    return 1 << (number - 1).bit_length()


def _mean_of_rounded(dtype: torch.dtype, parts: Parts, rank: int) -> torch.Tensor | None:
    totals = [_total(own) for own in parts]
    return mean([None if total is None else _rounded(total, dtype) for total in totals])


def _rounded(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return value if value.is_complex() else value.to(dtype).to(value.dtype)


def _of_several_ranks(plan: Plan, step: int) -> bool:
    return plan.size > 1


def _of_several_parts(plan: Plan, step: int) -> bool:
    return plan.parts > 1


def _reduces_several_parts(plan: Plan, step: int) -> bool:
    return plan.size > 1 and plan.parts > 1


def _clips(plan: Plan, step: int) -> bool:
    return plan.clip > 0


def _clips_several_parts(plan: Plan, step: int) -> bool:
    return plan.clip > 0 and plan.parts > 1


def _clips_on_several_ranks(plan: Plan, step: int) -> bool:
    return plan.clip > 0 and plan.size > 1


def _is_no_start(plan: Plan, step: int) -> bool:
    return step > 1


def _decays(plan: Plan, step: int) -> bool:
    return any(group.get("weight_decay") for group in plan.optimize(plan.build()).param_groups)


def _decays_apart(plan: Plan, step: int) -> bool:
    return len({group.get("weight_decay") for group in plan.optimize(plan.build()).param_groups}) > 1


def _leaves_out(plan: Plan, step: int) -> bool:
    """Return whether some parameters may have no gradient."""
    return not plan.made.properties.isdisjoint(_WITHOUT_GRADIENTS)


#: What a step looks like of an optimizer that has forgotten its state.
ANEW = Pattern("anew", "as if the optimizer had started anew")

#: A mistake, or None for none, and all values that it would lead to.
Mistaken = tuple[Pattern | None, Values]


@dataclass(frozen=True)
class Mistake:
    """A mistake of one step, which is right in all else."""

    id: str
    text: str
    """What a step does that makes it; ``ranks`` and ``parts`` stand for the numbers of ranks and microbatches,
    ``power`` for the power of two from the ranks on."""
    gradient: Callable[[Parts, int], torch.Tensor | None] = _mean
    """The gradient of a parameter on this rank, made from those of each rank's microbatches."""
    applies: Callable[[Plan, int], bool] = _of_several_ranks
    """Whether a step of a plan can have it."""
    each: Callable[[AllParts, float], AllParts] | None = None
    """What is done with the gradients of the microbatches before; the norm is the plan's limit."""
    clips: bool = True
    """Whether the step clips, if the plan does."""
    fills: bool = False
    """Whether a parameter without a gradient gets one of zeros."""
    before: Callable[[Plan, nn.Module, torch.optim.Optimizer], None] | None = None
    """What is done with the optimizer before the step."""

    def pattern(self, plan: Plan) -> Pattern:
        return Pattern(self.id, self.text.format(ranks=plan.size, parts=plan.parts, power=_power(plan.size)))


def _clipped(gradients: list[Gradients], limit: float) -> list[Gradients]:
    """Return the gradients of one rank's microbatches, scaled together to a norm of at most the limit."""
    totals = [_total([each[name] for each in gradients]) for name in gradients[0]]
    norms = [total.norm() for total in totals if total is not None]
    norm = torch.stack(norms).norm() if norms else torch.zeros(())
    scale = float((limit / (norm + 1e-6)).clamp(max=1.0))
    return [{name: _times(value, scale) for name, value in each.items()} for each in gradients]


def _each_part_clipped(parts: AllParts, limit: float) -> AllParts:
    return [[_clipped([part], limit)[0] for part in own] for own in parts]


def _each_rank_clipped(parts: AllParts, limit: float) -> AllParts:
    return [_clipped(own, limit) for own in parts]


def _anew(plan: Plan, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Replace the optimizer's state by that of a new one."""
    optimizer.state.clear()
    optimizer.state.update(plan.optimize(module).state)


def _without_decay(plan: Plan, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        group["weight_decay"] = 0.0


def _decay_everywhere(plan: Plan, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Give each group the largest weight decay of all."""
    largest = max(group["weight_decay"] for group in optimizer.param_groups)
    for group in optimizer.param_groups:
        group["weight_decay"] = largest


MISTAKES = (
    Mistake(
        "not-reduced",
        "as if this rank had used its own gradient, not the mean",
        lambda parts, rank: _total(parts[rank]),
    ),
    Mistake(
        "sum-for-mean",
        "as if the gradients of the {ranks} ranks were added up, without a mean",
        lambda parts, rank: _times(_mean(parts), len(parts)),
    ),
    Mistake(
        "sum-for-mean",
        "as if the mean gradient was divided by the {ranks} ranks once more",
        lambda parts, rank: _times(_mean(parts), 1 / len(parts)),
    ),
    Mistake(
        "not-reduced",
        "as if this rank had divided its own gradient by {ranks}, and never added the others'",
        lambda parts, rank: _times(_total(parts[rank]), 1 / len(parts)),
    ),
    Mistake(
        "not-reduced",
        "as if all had used rank 0's gradient",
        lambda parts, rank: _total(parts[0]) if rank else _mean(parts),  # rank 0 has used its own
    ),
    Mistake(
        "reduced-twice",
        "as if all but the last microbatch were reduced twice: {ranks} times too much",
        _first_reduced_twice,
        _reduces_several_parts,
    ),
    Mistake(
        "not-reduced",
        "as if the last microbatch alone had counted",
        lambda parts, rank: mean([own[-1] for own in parts]),
        _reduces_several_parts,
    ),
    Mistake(
        "sum-for-mean",
        "as if the gradients of the {parts} microbatches were added up, without a mean",
        lambda parts, rank: _times(_mean(parts), len(parts[0])),
        _of_several_parts,
    ),
    Mistake(
        "sum-for-mean",
        "as if the sum over the {ranks} ranks was divided by {power}, a power of two",
        lambda parts, rank: _times(_mean(parts), len(parts) / _power(len(parts))),
        lambda plan, step: _power(plan.size) != plan.size,
    ),
    *(
        Mistake(
            "rounded",
            f"as if the gradient of each rank was rounded to {str(dtype).removeprefix('torch.')} before the mean",
            partial(_mean_of_rounded, dtype),
        )
        for dtype in (torch.float32, torch.bfloat16)
    ),
    Mistake("clipped", "as if this rank had not clipped", applies=_clips, clips=False),
    Mistake(
        "clipped",
        "as if each microbatch was clipped, and not their sum",
        applies=_clips_several_parts,
        each=_each_part_clipped,
        clips=False,
    ),
    Mistake(
        "clipped",
        "as if each microbatch was clipped, and then their sum",
        applies=_clips_several_parts,
        each=_each_part_clipped,
    ),
    Mistake(
        "clipped",
        "as if each rank had clipped its own gradient, before the mean",
        applies=_clips_on_several_ranks,
        each=_each_rank_clipped,
        clips=False,
    ),
    Mistake(ANEW.id, ANEW.text, applies=_is_no_start, before=_anew),
    Mistake("decay", "as if it had no weight decay", applies=_decays, before=_without_decay),
    Mistake("decay", "as if weight decay went to all alike", applies=_decays_apart, before=_decay_everywhere),
    Mistake(
        "none-as-zero",
        "as if what has no gradient had one of zeros, with decay and momentum",
        applies=_leaves_out,
        fills=True,
    ),
)


#: Nothing but the plan.
_RIGHT = Mistake("factor", "")


def would_be(plan: Plan, rank: int, step: int) -> Iterator[Mistaken]:
    """Yield each mistake of the list, and all values after this step, if this rank made it there and not before.

    The first is None, with the values of the plan without a mistake: a law that does more than its plan, such as to
    set an option by hand, expects others, and then no mistake says anything.

    The values are the parameters, and their gradients as ``NAME.grad``.
    """
    yield None, _with(_RIGHT, plan, rank, step)
    for mistake in MISTAKES:
        if mistake.applies(plan, step):
            yield mistake.pattern(plan), _with(mistake, plan, rank, step)


def _with(mistake: Mistake, plan: Plan, rank: int, last: int) -> Values:
    def gradients(module: nn.Module, step: int) -> tuple[torch.Tensor, Gradients]:
        parts, losses = [], []
        for index in range(plan.size):
            plan.prepare(module, index, step)
            own, total = _microbatches(plan, module, index, step)
            parts.append(own)
            losses.append(total)
        if step == last and mistake.each is not None:
            parts = mistake.each(parts, plan.clip)
        combine = mistake.gradient if step == last else _mean
        names = [name for name, _ in module.named_parameters()]
        made = {name: combine([[part[name] for part in own] for own in parts], rank) for name in names}
        if step == last and mistake.fills:
            zeros = {name: torch.zeros_like(value) for name, value in module.named_parameters()}
            made |= {name: zeros[name] for name, value in made.items() if value is None}
        return sum_in_order(losses) / plan.size, made

    def before(module: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
        if step == last and mistake.before is not None:
            mistake.before(plan, module, optimizer)

    run = train(replace(plan, steps=last), gradients, before, lambda step: mistake.clips or step < last)
    end = run.steps[-1]
    made = {f"{name}.grad": value.to_dense() for name, value in end.gradients.items() if value is not None}
    return {**end.values, **made}


def _microbatches(plan: Plan, module: nn.Module, rank: int, step: int) -> tuple[list[Gradients], torch.Tensor]:
    """Return the gradients of each microbatch of a rank, and the sum of their losses."""
    made, losses = [], []
    for part in range(plan.parts):
        module.zero_grad()
        if plan.present(rank, step):
            total = loss(module, plan.batch(rank, step, part)) / plan.parts
            total.backward()
            losses.append(total.detach())
        made.append(take_gradients(module))
    return made, sum_in_order(losses) if losses else torch.zeros((), dtype=plan.dtype)
