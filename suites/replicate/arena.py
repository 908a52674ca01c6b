"""Where the laws of ``replicate`` are checked: a module of one's own on each rank, trained as planned."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # the first optimizer imports it; here once, instead of in every rank
import torch.distributed as dist
from everyrank import current_world
from everyrank.fixtures.data import loss
from everyrank.suites.acts import subject_acts
from everyrank.suites.compare import CLOSE_FP64, EXACT, Comparison, Tolerance
from everyrank.suites.contract import Point
from everyrank.suites.errors import BrokenAdapter, Deviation, NotApplicable
from everyrank.suites.reference import SEED, Gradients, Plan, Trajectory, order_matched, step_with, sum_in_order
from everyrank.suites.replicate.wrappers import Wrappers, names_of
from everyrank.suites.subject import Subject
from torch import nn
from torch.distributed.distributed_c10d import _set_pg_timeout, _world

Values = Mapping[str, torch.Tensor]

#: What a subject may declare: each rank keeps its own buffers.
LOCAL_BUFFERS = "local-buffers"

#: A collective whose peer is gone ends at once; one that waits for a peer that never comes ends here.
PATIENCE = timedelta(seconds=10)
#: Where all ranks that are waited for are known not to come.
_HURRY = timedelta(milliseconds=300)


@dataclass
class Arena:
    """What each rank has in hand."""

    subject: Subject
    point: Point
    rank: int
    size: int
    deviations: list[str] = field(default_factory=list)
    wrappers: Wrappers = field(default_factory=Wrappers)

    @property
    def local_buffers(self) -> bool:
        """Whether the subject leaves each rank its own buffers."""
        return LOCAL_BUFFERS in self.subject.declares

    @property
    def tolerance(self) -> Tolerance:
        """Two ranks have one order of a sum, and halves are exact: bit for bit. With more, orders differ."""
        return EXACT if self.size <= 2 else CLOSE_FP64

    def check(self, holds: bool, text: str) -> None:
        """A law's own condition; told at the end, since the other ranks may need this one until then."""
        if not holds:
            self.deviations.append(text)

    def build(self, module: nn.Module, **options: Any) -> nn.Module:
        """What the subject makes of a module: that module, or a wrapper. What it raises is the law's affair."""
        names = names_of(module)
        built = self.subject.build(module, **options)
        if not isinstance(built, nn.Module):
            raise BrokenAdapter(f"build of {self.subject.name} returned a {type(built).__name__}, not a module")
        self.wrappers.add(built, module, names, self.subject.name)
        return built

    def built(self, plan: Plan, seed_by_rank: bool = False, **options: Any) -> nn.Module:
        """The subject's module, as the plan has it, where it has no reason to raise."""
        module = plan.build(SEED + self.rank if seed_by_rank else SEED)
        with subject_acts():
            return self.build(module, **options)

    def offered(self, plan: Plan, **options: Any) -> nn.Module:
        """The subject's module, built with options that it may refuse: by a TypeError that names one of them."""
        module = plan.build()
        with subject_acts():
            try:
                return self.build(module, **options)
            except TypeError as error:
                if not any(name in str(error) for name in options):
                    raise
                refusal = error
        raise NotApplicable(f"the subject does not take {', '.join(options)}") from refusal

    def inside(self, module: nn.Module) -> nn.Module:
        """The module that has the local names: what `build` returned, or what that wraps."""
        return self.wrappers.inside(module)

    def values(self, module: nn.Module) -> dict[str, torch.Tensor]:
        """The parameters, by their local names."""
        return {name: value.detach() for name, value in self.wrappers.parameters(module)}

    def gradients(self, module: nn.Module) -> Gradients:
        """The gradients as they are now, by their parameters' local names."""
        return {
            name: None if value.grad is None else value.grad.detach().clone()
            for name, value in self.wrappers.parameters(module)
        }

    def load(self, module: nn.Module, reference: Values) -> None:
        """Go on from the reference's values, so that one divergence does not hide the next."""
        with torch.no_grad():
            for name, parameter in self.wrappers.parameters(module):
                parameter.copy_(reference[name])

    def comparison(self, reference: Trajectory | None = None, tolerance: Tolerance | None = None) -> Comparison:
        comparison = Comparison(tolerance or self.tolerance, self.subject.bound)
        if reference is not None:
            comparison.start(reference.start)
        return comparison

    def backward(self, plan: Plan, module: nn.Module, step: int, synced: bool = False) -> torch.Tensor:
        """This rank's part of a step; returns the mean loss of all ranks."""
        plan.prepare(self.inside(module), self.rank, step)
        losses = []
        for part in range(plan.parts):
            last = part == plan.parts - 1
            with contextlib.nullcontext() if last or synced else unsynced(module), subject_acts():
                total = loss(module, plan.batch(self.rank, step, part)) / plan.parts
                total.backward()
                losses.append(total.detach())
        return sum_in_order(losses)

    def step(self, plan: Plan, module: nn.Module, optimizer: Any, step: int, synced: bool = False) -> Gradients:
        """One step of the subject; returns the gradients of its first backward, before any clipping."""
        found: Gradients = {}

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            total = self.backward(plan, module, step, synced)
            found.update({} if found else self.gradients(module))
            plan.after_backward(module)
            # The optimizers that look at the loss must see the same one everywhere.
            return self.mean(total) if "closure" in plan.row.needs else total

        step_with(plan, optimizer, closure)
        return found

    def follow(
        self,
        plan: Plan,
        module: nn.Module,
        reference: Trajectory | None = None,
        tolerance: Tolerance | None = None,
        synced: bool = False,
    ) -> Comparison:
        """Train as planned, and compare after each step with the reference, from whose values it goes on."""
        reference = reference or order_matched(plan)
        comparison = self.comparison(reference, tolerance)
        optimizer = plan.optimize(module)
        scheduler = plan.scheduler(optimizer)
        for step, expected in enumerate(reference.steps, 1):
            found = self.step(plan, module, optimizer, step, synced)
            self.compare_gradients(comparison, step, found, expected.gradients)
            if scheduler is not None:
                scheduler.step()
            comparison.step(step, self.values(module), expected.values)
            self.load(module, expected.values)
        return comparison

    def compare_gradients(self, comparison: Comparison, step: int, ours: Gradients, reference: Gradients) -> None:
        """Both None, or both the same gradient."""
        for name, expected in reference.items():
            mine = ours.get(name)
            if mine is None or expected is None:
                have, want = ("None" if one is None else "a gradient" for one in (mine, expected))
                self.check(have == want, f"step {step}, {name}.grad is {have} instead of {want}")
            else:
                comparison.step(step, {f"{name}.grad": dense(mine)}, {f"{name}.grad": dense(expected)})

    def conforms(self, plan: Plan, **options: Any) -> None:
        """Built with these options, it trains as the reference does."""
        self.follow(plan, self.built(plan, **options)).verdict()

    def mean(self, value: torch.Tensor) -> torch.Tensor:
        """The kit's own mean over ranks, in rank order."""
        parts = [torch.empty_like(value) for _ in range(self.size)]
        dist.all_gather(parts, value)
        return sum_in_order(parts) / self.size

    @contextlib.contextmanager
    def group(self) -> Iterator[Group]:
        """A default group of this case's own, which a rank may leave as a dying process would.

        A subject knows nothing of it: it uses the default group, or makes groups of its own while it is built.
        """
        group = Group(_connections(), set(_world.pg_map))
        default = dist.group.WORLD
        made = dist.new_group(list(range(self.size)), timeout=PATIENCE)
        current_world().barrier()  # who leaves at once must not keep others from connecting
        dist.group.WORLD = made
        try:
            yield group
        finally:
            group.leave()
            dist.group.WORLD = default
            dist.destroy_process_group(made)


@dataclass
class Group:
    """The groups that a rank makes in one case, and the connections, which it can close all at once."""

    connections_before: dict[int, str]
    groups_before: set[Any]
    left: bool = False

    def hurry(self) -> None:
        """From here on this rank's operations end soon, whoever does not answer."""
        for group in set(_world.pg_map) - self.groups_before:
            _set_pg_timeout(_HURRY, group)

    def leave(self) -> None:
        """What the kernel does for a process that dies: all connections are closed, whoever still holds them."""
        if self.left:
            return
        self.left = True
        for fd, link in _connections().items():
            if self.connections_before.get(fd) == link:
                continue
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(fd)) as line:
                line.getpeername()  # not one that only listens
                line.shutdown(socket.SHUT_RDWR)


def _connections() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            link = os.readlink(f"/proc/self/fd/{name}")
            if link.startswith("socket:"):
                found[int(name)] = link
    return found


@contextlib.contextmanager
def unsynced(module: Any) -> Iterator[None]:
    """Forward and backward without communication, by torch's method or as DDP has it."""
    if callable(getattr(module, "set_requires_gradient_sync", None)):
        module.set_requires_gradient_sync(False)
        yield
        module.set_requires_gradient_sync(True)
    elif callable(getattr(module, "no_sync", None)):
        with module.no_sync():
            yield
    else:
        with subject_acts():  # a subject may declare it as lacking
            raise AttributeError(
                f"the module, a {type(module).__name__}, has neither set_requires_gradient_sync(on) nor no_sync()"
            )


@contextlib.contextmanager
def arena(subject: Subject, point: Point) -> Iterator[Arena]:
    """All ranks do the same, over the default group."""
    world = current_world()
    inside = Arena(subject, point, world.rank, world.size)
    try:
        yield inside
        if inside.deviations:
            raise Deviation(inside.deviations[0])
    except Deviation as deviation:
        half = Path(world.folder, f"half-of-{_FOUND}{world.rank}")
        half.write_text(deviation.packed())
        half.rename(half.with_name(f"{_FOUND}{world.rank}"))  # another rank reads it whole, or does not see it
        raise
    # A case has one outcome, whichever rank is asked for it.
    if world.somebody_left():
        told = sorted(Path(world.folder).glob(f"{_FOUND}*"))
        for one in told[:1]:
            raise Deviation.unpacked(one.read_text(), f"rank {one.name.removeprefix(_FOUND)}: ")
        raise Deviation("another rank did not come to the end")


#: A file in the folder of the world, by which a rank tells the others what it has found.
_FOUND = "deviation-of-rank-"


def dense(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.to_dense() if gradient.is_sparse else gradient


def error_of(action: Callable[[], Any]) -> Exception | None:
    """What it raises."""
    try:
        action()
    except Exception as error:
        return error
    return None


def collect() -> None:
    """Let go of what only cycles hold: the sockets of a group that was left."""
    gc.collect()
