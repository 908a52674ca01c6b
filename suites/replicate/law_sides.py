"""Both sides of a law's training on one rank: the subject's module, and the run of a plan in one process."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from everyrank.suites.compare.comparison import CLOSE_FP64, EXACT, Comparison, Tolerance, same
from everyrank.suites.compare.reference import Plan, Trajectory, rank_gradients
from everyrank.suites.errors import Deviation
from everyrank.suites.replicate.arena import Arena, dense
from everyrank.suites.replicate.model import buffer_values
from everyrank.suites.replicate.planned import Packing, Planned, Taker, packed
from everyrank.suites.replicate.sides import Sides
from torch import nn

Values = Mapping[str, torch.Tensor]


class LawSides(Sides):
    """Both sides of a law's training, and the comparison of all its steps: the first must not hide the next.

    The reference is the run of a plan. Models beside the subject's, rank 0's and this rank's, have the values at the
    start, and the buffers that a forward must see.
    """

    made_of: Planned

    def __init__(
        self, arena: Arena, made_of: Planned, reference: Callable[[Plan], Trajectory], tolerance: Tolerance | None
    ) -> None:
        self.plan, self.reference = made_of.plan, reference
        super().__init__(arena, made_of)
        # On two ranks halves are exact, and sums have one order.
        tolerance = tolerance or (EXACT if self.size <= 2 else CLOSE_FP64)
        self.comparison = Comparison(tolerance, arena.subject.bound, ranks=self.size)
        self.steps = self.part = 0
        """How many steps there were, and how many microbatches of the next."""
        self.closure: list[Callable[[], torch.Tensor]] = []
        """What computes the loss again, for an optimizer that needs it."""
        self.judged = 0
        """The step whose gradients were compared last: a closure computes them again."""
        self.weight = 1.0
        """What each loss counts."""
        self.losses: list[torch.Tensor] = []
        """Those of the microbatches."""
        self.when = " before training"
        self.late: list[Deviation] = []
        """What was found besides the values of steps."""
        self.seen: list[tuple[Values, Values]] | None = None
        """The buffers that each forward has seen, and those that it must see, if that is looked at."""

    # --- objects -------------------------------------------------------------------------------------

    def model(self, seed: int, rank: int, number: int) -> nn.Module:
        made_of, keeps = self.made_of, self.made_of.build.keeps
        model = self.plan.build(seed + rank if made_of.own_values else seed)
        for name, parameter in model.named_parameters():
            if made_of.alone and keeps(name):  # an ignored module has other values on each rank
                parameter.data.add_(rank)
        for buffer in model.buffers() if made_of.own_buffers else ():
            buffer.copy_(buffer_values(buffer, number + 1, rank))
        return (Taker(model) if made_of.taking else model).to(made_of.device)

    def optimize(self) -> None:
        self.optimizers = [self.plan.optimize(self.ours)]
        self.scheduler = self.plan.scheduler(self.optimizers[0])

    def named(self, model: nn.Module) -> dict[str, nn.Parameter]:
        return {name.removeprefix("inner."): value for name, value in super().named(model).items()}

    # --- training ------------------------------------------------------------------------------------

    def train_twins(
        self, number: int, time: int, skips: Sequence[tuple[int, ...]], rowless: Sequence[int], synced: bool
    ) -> Any:
        """Return the next microbatch of this rank: the reference was trained before."""
        batch = self.plan.batch(self.rank, self.steps + 1, self.part)
        self.part += 1
        if self.seen is not None:
            self.twins.send_buffers()
            for twin in self.twins.models:
                twin(batch.inputs)
        return batch

    def loss(self, rows: torch.Tensor, targets: torch.Tensor, skips: tuple[int, ...], packing: str) -> torch.Tensor:
        if "optional" in self.plan.definition.properties:
            self.inside.skip = bool(skips)  # type: ignore[assignment]
        args, kwargs = packed(cast("Packing", packing), rows) if packing else ((rows,), {})
        loss: torch.Tensor = (self.ours(*args, **kwargs) - targets.to(self.made_of.device)).square().mean()
        self.losses.append(loss * self.weight / self.plan.parts)
        return self.losses[-1]

    def step(self) -> None:
        self.optimizers[0].step(*self.closure)
        if self.scheduler is not None:
            self.scheduler.step()
        self.steps += 1

    def load(self, values: Values) -> None:
        """Copy values into the module. Otherwise one divergence would hide the next."""
        with torch.no_grad():
            for name, parameter in self.named(self.ours).items():
                parameter.copy_(values[name])

    # --- comparing -----------------------------------------------------------------------------------

    @functools.cached_property
    def run(self) -> Trajectory:
        return self.reference(self.plan)

    @property
    def values(self) -> Values:
        return {name: value.detach() for name, value in self.named(self.ours).items()}

    def compare(self) -> None:
        """Compare the values after a step, and go on from the reference's."""
        expected = self.run.steps[self.steps - 1].values
        self.comparison.step(self.steps, self.values, expected)
        self.load(expected)

    def compare_gradients(self, own: bool = False) -> None:
        """Compare gradients: each must be None in both, or the same in both; those not averaged are this rank's."""
        step, expected = self.steps + 1, self.run.steps[self.steps].gradients
        if step == self.judged:
            return
        self.judged = step
        keeps = self.made_of.build.keeps
        if own or any(map(keeps, expected)):
            _, alone = rank_gradients(self.plan, self.plan.build(), self.rank, step)
            expected = {name: (alone if own or keeps(name) else expected)[name] for name in expected}
        named = self.named(self.ours)
        found, wanted = {}, {}
        for name, due in expected.items():
            mine = named[name].grad if name in named else None
            if mine is None or due is None:
                have, want = ("None" if gradient is None else "a gradient" for gradient in (mine, due))
                self.arena.check(have == want, f"step {step}, {name}.grad is {have} instead of {want}")
            else:
                found[f"{name}.grad"], wanted[f"{name}.grad"] = dense(mine).cpu(), dense(due)
        if wanted:
            self.comparison.step(step, found, wanted)

    def same(self, values: torch.Tensor, expected: torch.Tensor, name: str) -> None:
        try:
            same(values, expected, name)
        except Deviation as deviation:
            self.late.append(deviation)

    def check_start(self, buffers: bool) -> None:
        """Check the parameters, or the buffers, as the module is wrapped."""
        named = self.inside.named_buffers() if buffers else self.values.items()
        wanted = dict(self.twin.named_buffers()) if buffers else self.run.start
        for name, value in named:
            same(value, wanted[name], f"{'buffer ' if buffers else ''}{name}, as it is wrapped")

    def check_ignored(self) -> None:
        """Check that each rank has kept what is ignored, and nothing else."""
        for name, value in self.values.items():
            note = "is ignored" if self.made_of.build.keeps(name) else "is not ignored"
            same(value, self.twin.get_parameter(name), f"{name}, which {note}, after a forward")

    def watch(self) -> None:
        """Look at the buffers in each forward, from now on."""
        seen = self.seen = []
        self.inside.get_submodule("first").register_forward_pre_hook(
            lambda *_: seen.append((_buffers(self.inside), _buffers(self.twin)))
        )

    def verdict(self) -> None:
        for number, (seen, wanted) in enumerate(self.seen or (), 1):
            for name, value in wanted.items():
                same(seen[name], value, f"buffer {name} in forward {number}")
        for deviation in self.late:
            raise deviation
        self.comparison.verdict()


def _buffers(module: nn.Module) -> Values:
    return {name: value.detach().clone() for name, value in module.named_buffers()}
