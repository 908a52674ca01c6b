"""The player of the laws of ``replicate``: it makes one law's moves on the model of a plan.

It finds all that differs, where the player of a script ends at the first: a law names each step that deviates.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal, cast

import torch
from everyrank.suites.arena.subject_errors import subject_acts
from everyrank.suites.compare.comparison import CLOSE_FP64, EXACT, Comparison, Tolerance, same
from everyrank.suites.compare.mistakes import would_be
from everyrank.suites.compare.reference import (
    Plan,
    Trajectory,
    order_matched,
    rank_gradients,
    sum_in_order,
)
from everyrank.suites.errors import Deviation, NotApplicable
from everyrank.suites.moves.move import Move
from everyrank.suites.moves.together import Rejected
from everyrank.suites.replicate.arena import Arena, dense
from everyrank.suites.replicate.model import buffer_values
from everyrank.suites.replicate.moves_of_modules import ApartMoves
from everyrank.suites.replicate.planned import Packing, Planned, Taker, packed, planned
from everyrank.suites.replicate.sides import Sides
from torch import nn

Values = Mapping[str, torch.Tensor]

#: Which backwards of a step are synced: the last, all, or none; ``after-all``: all, once all forwards are done.
Sync = Literal["last", "all", "none", "after-all"]


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
        made_of = self.made_of
        model = self.plan.build(seed + rank if made_of.own_values else seed)
        for name, parameter in model.named_parameters():
            if made_of.alone and self.ignored(name):
                parameter.data.add_(rank)
        for buffer in model.buffers() if made_of.own_buffers else ():
            buffer.copy_(buffer_values(buffer, number + 1, rank))
        return model

    def _built(self, model: nn.Module) -> nn.Module:
        return super()._built((Taker(model) if self.made_of.taking else model).to(self.made_of.device))

    def refused(self, option: str, error: TypeError) -> None:
        if option in self.made_of.options:
            raise NotApplicable(f"the subject does not take {', '.join(self.made_of.options)}") from error

    def optimize(self) -> None:
        self.optimizers = [self.plan.optimize(self.ours)]
        self.scheduler = self.plan.scheduler(self.optimizers[0])

    @property
    def replicated(self) -> tuple[str, ...]:
        return self.made_of.replicated

    @property
    def alone(self) -> str:
        return self.made_of.alone

    @property
    def options(self) -> Mapping[str, Any]:
        return {**super().options, **self.made_of.options}

    @property
    def local_buffers(self) -> bool:
        return not self.made_of.options.get("broadcast_buffers", not self.arena.local_buffers)

    @property
    def ranks(self) -> list[int]:
        return [0, self.rank]

    @property
    def twin(self) -> Any:
        return self.twins.models[-1]

    def named(self, model: nn.Module) -> dict[str, nn.Parameter]:
        return {name.removeprefix("inner."): value for name, value in super().named(model).items()}

    def ignored(self, name: str) -> bool:
        inside = any(not path or name.startswith(f"{path}.") for path in self.replicated)
        return super().ignored(name) or not inside

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
        if "optional" in self.plan.made.properties:
            self.inside.skip = bool(skips)  # type: ignore[assignment]
        args, kwargs = packed(cast("Packing", packing), rows) if packing else ((rows,), {})
        loss: torch.Tensor = (self.ours(*args, **kwargs) - targets.to(self.made_of.device)).square().mean()
        self.losses.append(loss * self.weight / self.plan.parts)
        return self.losses[-1]

    def step(self, *closure: Callable[[], torch.Tensor]) -> None:
        """Do one step of the optimizer, and compare; then go on from the reference's values."""
        self.optimizers[0].step(*closure)
        if self.scheduler is not None:
            self.scheduler.step()
        self.steps += 1
        expected = self.run.steps[self.steps - 1].values
        self.comparison.step(self.steps, self.values, expected)
        self.load(expected)

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

    def compare_gradients(self, own: bool = False) -> None:
        """Compare gradients: each must be None in both, or the same in both; those not averaged are this rank's."""
        step, expected = self.steps + 1, self.run.steps[self.steps].gradients
        if step == self.judged:
            return
        self.judged = step
        if own or any(map(self.ignored, expected)):
            _, alone = rank_gradients(self.plan, self.plan.build(), self.rank, step)
            expected = {name: (alone if own or self.ignored(name) else expected)[name] for name in expected}
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


class LawPlayer(ApartMoves):
    """Makes the moves of one law. A rank that deviates ends at once, and the arena lets all ranks end alike."""

    model: Planned

    def __init__(self, arena: Arena, model: Planned, **options: Any) -> None:
        super().__init__(arena.subject, model, arena)
        self.given = options

    @functools.cached_property
    def sides(self) -> LawSides:
        return LawSides(self.arena, self.model, **self.given)

    def make(self, move: Move, act: Callable[[], None], arguments: Mapping[str, Any]) -> None:
        __tracebackhide__ = True
        self.number += 1
        act()

    def follow(self, sync: Sync = "last", before: Callable[[int], None] | None = None) -> None:
        """Train as planned, and compare the gradients and the values of each step with the reference's.

        ``before`` acts before each step, of which it is given the number.
        """
        sides, plan = self.sides, self.model.plan
        sides.comparison.start(sides.run.start)
        sides.comparison.mistakes = partial(would_be, plan, sides.rank)
        for number in range(1, plan.steps + 1):
            if before is not None:
                before(number)
            for param in sorted(sides.frozen) if number == plan.thaw else ():
                self.thaw(param)
            if "closure" in plan.row.needs:
                sides.step(partial(self._evaluate, sync))
            else:
                self.backwards(sync)
                self.step()

    def backwards(self, sync: Sync = "last", packing: str = "") -> None:
        """Run forward and backward on the microbatches of the next step, and compare the gradients."""
        sides, plan = self.sides, self.model.plan
        self.clear()
        sides.part, sides.losses = 0, []
        given: dict[str, Any] = {"packing": packing}
        if plan.skips and sides.steps + 1 >= plan.skips_from:
            branch = [number for number, param in enumerate(self.model.params) if param.name.startswith("branch.")]
            given |= {"skips": tuple(branch), "skipped_by": tuple(plan.skips)}
        alone = {"last": plan.parts - 1, "none": plan.parts}.get(sync, 0)
        if alone:
            self.backward(synced=False, times=alone, **given)
        if sync == "after-all":
            self.backward(forwards=plan.parts, **given)
        elif alone < plan.parts:
            self.backward(times=plan.parts - alone, **given)
        sides.compare_gradients(own=sync == "none")
        plan.after_backward(sides.ours)

    def _evaluate(self, sync: Sync) -> torch.Tensor:
        """Compute the loss again. The optimizers that look at the loss must see the same loss on every rank."""
        self.backwards(sync)
        return self.arena.mean(sum_in_order([loss.detach() for loss in self.sides.losses]))

    def load_local(self, seed: int, inside: bool = False) -> None:
        """Load the state dict of a plain model."""
        sides = self.sides
        sides.when = " after loading a local module's"
        sides.twin.load_state_dict(self.model.plan.build(seed).state_dict())
        with subject_acts():
            (sides.inside if inside else sides.ours).load_state_dict(sides.twin.state_dict(), strict=True)


@contextlib.contextmanager
def playing(
    arena: Arena,
    plan: Plan,
    reference: Callable[[Plan], Trajectory] = order_matched,
    tolerance: Tolerance | None = None,
    **start: Any,
) -> Iterator[LawPlayer]:
    """Give the player of a law on the model of a plan, and come to a verdict at the end.

    ``start`` are fields of the model.
    """
    player = LawPlayer(arena, planned(plan, **start), reference=reference, tolerance=tolerance)
    with contextlib.suppress(Rejected):
        yield player
    player.sides.verdict()


def follow(arena: Arena, plan: Plan, **given: Any) -> None:
    """Train as planned, and compare with the reference after each step."""
    with playing(arena, plan, **given) as player:
        player.follow()
