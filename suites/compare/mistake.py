"""The mistakes that are looked for: each is a step with one thing wrong, and right in all else."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from everyrank.suites.compare.microbatches import (
    AllParts,
    Parts,
    all_but_the_last_are_its_own,
    by_rows,
    clip_scale,
    each_part_clipped,
    each_rank_clipped,
    first_reduced_twice,
    left_out,
    mean_of,
    mean_of_rounded,
    one_for_another,
    power_from,
    reduced_again_each_time,
    scaled,
    total_of,
)
from everyrank.suites.compare.patterns.fit import Fit
from everyrank.suites.compare.reference import Gradients, Plan, mean
from torch import nn

#: The properties of models some of whose parameters may have no gradient.
_WITHOUT_GRADIENTS = ("optional", "unused", "frozen")

#: Of so many ranks each one is looked at.
_FEW = 4


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


def _clips_large(plan: Plan, module: nn.Module) -> None:
    """Clip by a norm in which each of the ranks has counted all parameters."""
    gradients = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
    scale = clip_scale(gradients, plan.clip, counted=plan.size)
    for gradient in gradients:
        gradient.mul_(scale)


def _clips_each(plan: Plan, module: nn.Module) -> None:
    for parameter in module.parameters():
        torch.nn.utils.clip_grad_norm_([parameter], plan.clip)


def _not_at_all(plan: Plan, module: nn.Module) -> None:
    """Do not clip."""


def _is_no_start(plan: Plan, step: int) -> bool:
    return step > 1


def _always(plan: Plan, step: int) -> bool:
    return True


def _decays(plan: Plan, step: int) -> bool:
    return any(group.get("weight_decay") for group in plan.optimize(plan.build()).param_groups)


def _decays_apart(plan: Plan, step: int) -> bool:
    return len({group.get("weight_decay") for group in plan.optimize(plan.build()).param_groups}) > 1


def _has_groups(plan: Plan, step: int) -> bool:
    return len(plan.optimize(plan.build()).param_groups) > 1


def _leaves_out(plan: Plan, step: int) -> bool:
    """Return whether some parameters may have no gradient."""
    return not plan.definition.properties.isdisjoint(_WITHOUT_GRADIENTS)


def _has_equal_shapes(plan: Plan, step: int) -> bool:
    return any(count > 1 for count in Counter(each.shape for each in plan.build().parameters()).values())


def _added(before: Gradients, now: Gradients) -> Gradients:
    return {name: total_of([before[name], value]) for name, value in now.items()}


def _in_opposite_order(before: Gradients, now: Gradients) -> Gradients:
    """Give each gradient to another parameter of its shape: the first's to the last, and so on."""
    alike: dict[torch.Size | None, list[str]] = {}
    for name, value in now.items():
        alike.setdefault(None if value is None else value.shape, []).append(name)
    return {name: now[names[-1 - index]] for names in alike.values() for index, name in enumerate(names)}


#: What a step looks like of an optimizer that has forgotten its state.
ANEW = Fit("anew", "as if the optimizer had started anew")
#: And of one that has forgotten how many steps it has done.
UNCOUNTED = Fit("anew", "as if the optimizer had begun to count its steps anew")


@dataclass(frozen=True)
class Mistake:
    """A mistake of one step, which is right in all else."""

    id: str
    text: str
    """What a step does that makes it; ``ranks`` and ``parts`` stand for the numbers of ranks and microbatches,
    ``power`` for the power of two from the ranks on."""
    gradient: Callable[[Parts, int], torch.Tensor | None] = mean_of
    """The gradient of a parameter on this rank, made from those of each rank's microbatches."""
    applies: Callable[[Plan, int], bool] = _of_several_ranks
    """Whether a step of a plan can have it."""
    each: Callable[[AllParts, float], AllParts] | None = None
    """What is done with the gradients of the microbatches before; the norm is the plan's limit."""
    clip: Callable[[Plan, nn.Module], None] = Plan.after_backward
    """How the step clips, if the plan does."""
    times: int = 1
    """How often the optimizer goes."""
    together: Callable[[Gradients, Gradients], Gradients] | None = None
    """What all gradients of the step before, and those of this one, make together."""
    fills: bool = False
    """Whether a parameter without a gradient gets one of zeros."""
    before: Callable[[Plan, nn.Module, torch.optim.Optimizer], None] | None = None
    """What is done with the optimizer before the step."""

    def fit(self, plan: Plan) -> Fit:
        return Fit(self.id, self.text.format(ranks=plan.size, parts=plan.parts, power=power_from(plan.size)))


def _anew(plan: Plan, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Replace the optimizer's state by that of a new one."""
    optimizer.state.clear()
    optimizer.state.update(plan.optimize(module).state)


def uncount(optimizer: torch.optim.Optimizer) -> None:
    """Set the number of steps that the optimizer has counted to zero."""
    for state in optimizer.state.values():
        if "step" in state:
            state["step"] = state["step"] * 0


def _without_decay(plan: Plan, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        group["weight_decay"] = 0.0


def _decay_everywhere(plan: Plan, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Give each group the largest weight decay of all."""
    largest = max(group["weight_decay"] for group in optimizer.param_groups)
    for group in optimizer.param_groups:
        group["weight_decay"] = largest


def _options_of_the_first(plan: Plan, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    first, *others = optimizer.param_groups
    for group in others:
        group.update({**first, "params": group["params"]})


MISTAKES = (
    Mistake(
        "not-reduced",
        "as if this rank had used its own gradient, not the mean",
        lambda parts, rank: total_of(parts[rank]),
    ),
    Mistake(
        "sum-for-mean",
        "as if the gradients of the {ranks} ranks were added up, without a mean",
        lambda parts, rank: scaled(mean_of(parts), len(parts)),
    ),
    Mistake(
        "sum-for-mean",
        "as if the mean gradient was divided by the {ranks} ranks once more",
        lambda parts, rank: scaled(mean_of(parts), 1 / len(parts)),
    ),
    Mistake(
        "not-reduced",
        "as if this rank had divided its own gradient by {ranks}, and never added the others'",
        lambda parts, rank: scaled(total_of(parts[rank]), 1 / len(parts)),
    ),
    Mistake(
        "not-reduced",
        "as if all had used rank 0's gradient",
        lambda parts, rank: total_of(parts[0]) if rank else mean_of(parts),  # rank 0 has used its own
    ),
    Mistake(
        "reduced-twice",
        "as if all but the last microbatch were reduced twice: {ranks} times too much",
        first_reduced_twice,
        _reduces_several_parts,
    ),
    Mistake(
        "not-reduced",
        "as if the last microbatch alone had counted",
        lambda parts, rank: mean([own[-1] for own in parts]),
        _reduces_several_parts,
    ),
    Mistake(
        "not-reduced",
        "as if the last microbatch alone was reduced, and the others were this rank's own",
        all_but_the_last_are_its_own,
        _reduces_several_parts,
    ),
    Mistake(
        "reduced-twice",
        "as if all that was accumulated was added up over the ranks again after each microbatch",
        reduced_again_each_time,
        lambda plan, step: plan.size > 1 and plan.parts > 2,  # of two parts one is before the last
    ),
    Mistake(
        "sum-for-mean",
        "as if the gradients of the {parts} microbatches were added up, without a mean",
        lambda parts, rank: scaled(mean_of(parts), len(parts[0])),
        _of_several_parts,
    ),
    Mistake(
        "sum-for-mean",
        "as if the sum over the {ranks} ranks was divided by {power}, a power of two",
        lambda parts, rank: scaled(mean_of(parts), len(parts) / power_from(len(parts))),
        lambda plan, step: power_from(plan.size) != plan.size,
    ),
    *(
        Mistake(
            "rounded",
            f"as if the gradient of each rank was rounded to {str(dtype).removeprefix('torch.')} before the mean",
            partial(mean_of_rounded, dtype),
        )
        for dtype in (torch.float32, torch.bfloat16)
    ),
    Mistake("clipped", "as if this rank had not clipped", applies=_clips, clip=_not_at_all),
    Mistake(
        "clipped",
        "as if each microbatch was clipped, and not their sum",
        applies=_clips_several_parts,
        each=each_part_clipped,
        clip=_not_at_all,
    ),
    Mistake(
        "clipped",
        "as if each microbatch was clipped, and then their sum",
        applies=_clips_several_parts,
        each=each_part_clipped,
    ),
    Mistake(
        "clipped",
        "as if each rank had clipped its own gradient, before the mean",
        applies=_clips_on_several_ranks,
        each=each_rank_clipped,
        clip=_not_at_all,
    ),
    Mistake("clipped", "as if each parameter was clipped by its own norm", applies=_clips, clip=_clips_each),
    Mistake(
        "clipped",
        "as if the norm had counted all parameters {ranks} times, once for each rank",
        applies=_clips_on_several_ranks,
        clip=_clips_large,
    ),
    Mistake("twice", "as if the optimizer had stepped twice", applies=_always, times=2),
    Mistake(
        "stale",
        "as if it had used the gradients of the step before",
        applies=_is_no_start,
        together=lambda before, now: before,
    ),
    Mistake(
        "stale",
        "as if the gradients of the step before were still there, and the new ones were added",
        applies=_is_no_start,
        together=_added,
    ),
    Mistake(ANEW.id, ANEW.text, applies=_is_no_start, before=_anew),
    Mistake(
        UNCOUNTED.id, UNCOUNTED.text, applies=_is_no_start, before=lambda plan, module, optimizer: uncount(optimizer)
    ),
    Mistake("decay", "as if it had no weight decay", applies=_decays, before=_without_decay),
    Mistake("decay", "as if weight decay went to all alike", applies=_decays_apart, before=_decay_everywhere),
    Mistake(
        "groups",
        "as if the options of the first group went to all parameters",
        applies=_has_groups,
        before=_options_of_the_first,
    ),
    Mistake(
        "other-parameter",
        "as if parameters of one shape had taken each other's gradients",
        applies=_has_equal_shapes,
        together=_in_opposite_order,
    ),
    Mistake(
        "none-as-zero",
        "as if what has no gradient had one of zeros, with decay and momentum",
        applies=_leaves_out,
        fills=True,
    ),
)

#: Nothing but the plan.
RIGHT = Mistake("factor", "")


def mistakes(plan: Plan, step: int) -> Iterator[Mistake]:
    """Return the mistakes that a step can have; of a few ranks also what concerns each one's gradient."""
    yield from (mistake for mistake in MISTAKES if mistake.applies(plan, step))
    rows = plan.rows[: plan.size]
    if len(set(rows)) > 1:
        text = (
            f"as if the mean was taken over all rows, and not over ranks, which have {', '.join(map(str, rows))} rows"
        )
        yield Mistake("rows", text, partial(by_rows, rows))
    if 2 < plan.size <= _FEW:  # of two ranks, it is what this rank's own or rank 0's gradient would be
        for rank in range(plan.size):
            text = f"as if rank {rank}'s gradient was left out, and the sum divided by {plan.size}"
            yield Mistake("not-reduced", text, partial(left_out, rank))
        for twice, lost in itertools.permutations(range(plan.size), 2):
            text = f"as if rank {twice}'s gradient had counted for that of rank {lost}, too"
            yield Mistake("not-reduced", text, partial(one_for_another, twice, lost))
