"""Where the laws of ``rpc-optimizer`` are checked: parameters on their owners, a driver on rank 0."""

from __future__ import annotations

import contextlib
import functools
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._dynamo  # the first optimizer imports it; here once, instead of in every rank
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from everyrank import current_world
from everyrank.suites.acts import noise, subject_acts
from everyrank.suites.compare import EXACT, Comparison
from everyrank.suites.contract import Point
from everyrank.suites.errors import BrokenAdapter, Deviation
from everyrank.suites.subject import Subject

Spec = tuple[int, tuple[int, ...]]  # owner, shape


def error_of(action: Callable[[], Any], what: str) -> Exception:
    """The error that it raises, or a Deviation."""
    try:
        action()
    except Exception as error:
        one: BaseException | None = error
        while one is not None:  # frames hold RRefs, which would seem to be left behind
            traceback.clear_frames(one.__traceback__)
            one = one.__cause__ or one.__context__
        return error
    raise Deviation(f"{what} did not raise")


#: How long something that happens on another worker may take; only a failing case waits for it.
PATIENCE = 5.0


def eventually(holds: Callable[[], bool]) -> bool:
    """Whether it comes true; a worker that has to let go of something gets a moment."""
    until = time.monotonic() + PATIENCE
    while not (held := holds()) and time.monotonic() < until:
        time.sleep(0.005)
    return held


@dataclass(eq=False)
class Parameter:
    """One parameter: on its owner, and its twin in the reference."""

    owner: int
    twin: torch.Tensor
    rref: Any

    @property
    def name(self) -> str:
        return f"worker{self.owner}"

    def value(self) -> torch.Tensor:
        value: torch.Tensor = rpc.rpc_sync(self.name, fetch, args=(self.rref,))
        return value


@dataclass
class Arena:
    """What the driver has in hand."""

    subject: Subject
    point: Point
    size: int
    seed: int
    parameters: list[Parameter] = field(default_factory=list)

    def own(
        self, specs: Sequence[Spec], dtype: torch.dtype = torch.float64, requires_grad: bool = True
    ) -> list[Parameter]:
        """Parameters on their owners, distinct in value, with their twins here."""
        made = []
        for owner, shape in specs:
            value = noise(shape, dtype, _generator(self.seed, len(self.parameters), 1))
            twin = value.clone().requires_grad_(requires_grad)
            rref = rpc.remote(f"worker{owner}", make, args=(value, requires_grad))
            made.append(Parameter(owner, twin, rref))
            self.parameters.append(made[-1])
        for one in made:
            one.value()  # a remote value is made at some time; from here on it is there
        return made

    def build(self, optimizer: Any, parameters: Sequence[Parameter], *args: Any, **kwargs: Any) -> Any:
        """The subject, over these parameters. What it raises is the law's affair."""
        built = self.subject.build(optimizer, [one.rref for one in parameters], *args, **kwargs)
        if not callable(getattr(built, "step", None)):
            raise BrokenAdapter(
                f"build of {self.subject.name} returned a {type(built).__name__}, which has no step(context_id)"
            )
        return built

    def inputs(self, parameters: Sequence[Parameter], step: int) -> list[torch.Tensor]:
        """New data for each parameter at each step."""
        return [
            _input(one.twin.shape, one.twin.dtype, self.seed, step, number) for number, one in enumerate(parameters)
        ]

    def remote_loss(
        self, parameters: Sequence[Parameter], inputs: Sequence[torch.Tensor], how: Callable[..., Any]
    ) -> torch.Tensor:
        """The loss over these parameters, computed by their owners."""
        pairs = list(zip(parameters, inputs, strict=True))
        asked = []
        for owner, mine in _by_owner(pairs, lambda pair: pair[0].owner):
            rrefs, data = [one.rref for one, _ in mine], [data for _, data in mine]
            asked.append(rpc.rpc_async(f"worker{owner}", remote_losses, args=(how, rrefs, data)))
        return torch.cat([future.wait() for future in asked]).sum()

    def step(
        self, optimizer: Any, parameters: Sequence[Parameter], step: int, how: Callable[..., Any] | None = None
    ) -> None:
        """One step of the subject with the gradients of these parameters only."""
        how = how or loss
        with dist_autograd.context() as context_id:
            if parameters:
                total = self.remote_loss(parameters, self.inputs(parameters, step), how)
                dist_autograd.backward(context_id, [total])
            with subject_acts():
                optimizer.step(context_id)

    def step_that_moves(self, optimizer: Any, parameters: Sequence[Parameter]) -> None:
        """A first step. A law about what must not happen says nothing of a subject that does nothing."""
        before = [one.value() for one in parameters]
        self.step(optimizer, parameters, 1)
        for one, value in zip(parameters, before, strict=True):
            if torch.equal(one.value(), value):
                raise Deviation(f"a step with a gradient did not move {self._name(one)}")

    def reference_step(
        self, optimizer: Any, parameters: Sequence[Parameter], step: int, how: Callable[..., Any] | None = None
    ) -> None:
        """The same step here, with plain torch.optim: a parameter that is not named has no gradient."""
        how = how or loss
        for one in self.parameters:
            one.twin.grad = None
        if parameters:
            inputs = self.inputs(parameters, step)
            torch.stack([how(one.twin, data) for one, data in zip(parameters, inputs, strict=True)]).sum().backward()
        optimizer.step()

    def values(self) -> dict[str, torch.Tensor]:
        """All parameters, as their owners have them."""
        asked = [
            (mine, rpc.rpc_async(f"worker{owner}", fetch_all, args=([one.rref for one in mine],)))
            for owner, mine in _by_owner(self.parameters, lambda one: one.owner)
        ]
        got = {id(one): value for mine, future in asked for one, value in zip(mine, future.wait(), strict=True)}
        return {self._name(one): got[id(one)] for one in self.parameters}

    def twins(self) -> dict[str, torch.Tensor]:
        """All parameters of the reference."""
        return {self._name(one): one.twin for one in self.parameters}

    def _name(self, one: Parameter) -> str:
        return f"parameter {self.parameters.index(one)} on worker{one.owner}"

    def comparison(self) -> Comparison:
        """Bit for bit: the same kernels run on the same values."""
        comparison = Comparison(EXACT, self.subject.bound)
        comparison.start(self.twins())
        return comparison

    def on(self, owner: int, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function on an owner."""
        return rpc.rpc_sync(f"worker{owner}", function, args=args)


@contextlib.contextmanager
def arena(subject: Subject, point: Point) -> Iterator[Arena | None]:
    """Rank 0 drives; the agents of the others serve it until it is done."""
    world = current_world()
    acting[:] = [subject]
    world.barrier()  # a law may look at any rank from here on
    if world.rank != 0:
        yield None
        return
    inside = Arena(subject, point, world.size, 7)
    try:
        yield inside
    finally:
        inside.parameters.clear()


@functools.cache
def _input(shape: torch.Size, dtype: torch.dtype, seed: int, step: int, number: int) -> torch.Tensor:
    """Not to be written to: the subject's owners, the reference and other cases are given the same."""
    return noise(shape, dtype, _generator(seed, step, number, 2))


def _generator(*seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(hash(seed) % 2**31)


def _by_owner(things: list[Any], owner: Callable[[Any], int]) -> list[tuple[int, list[Any]]]:
    groups: dict[int, list[Any]] = {}
    for thing in things:
        groups.setdefault(owner(thing), []).append(thing)
    return list(groups.items())


#: The subject of this rank's case, for what runs on an owner: a subject does not travel.
acting: list[Subject] = []


# --- what runs on the owners -------------------------------------------------------------------------


def make(value: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    return value.clone().requires_grad_(requires_grad)


def fetch(rref: Any) -> torch.Tensor:
    value: torch.Tensor = rref.local_value().detach().clone()
    return value


def fetch_all(rrefs: Sequence[Any]) -> list[torch.Tensor]:
    return [fetch(rref) for rref in rrefs]


def device_of(rref: Any) -> str:
    return str(rref.local_value().device)


def remote_losses(how: Callable[..., Any], rrefs: Sequence[Any], inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.stack([how(rref.local_value(), data) for rref, data in zip(rrefs, inputs, strict=True)])


def loss(parameter: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    """A loss whose gradient depends on the data and on the parameter itself."""
    complex_ = parameter.is_complex()
    flat, other = (torch.view_as_real(parameter), torch.view_as_real(data)) if complex_ else (parameter, data)
    return ((flat * other).sum() + (flat * flat).sum() * 0.25).to(torch.float64)


def sparse_loss(parameter: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    """A loss with a sparse gradient: two rows of an embedding."""
    rows = torch.tensor([0, parameter.shape[0] - 1])
    picked = torch.nn.functional.embedding(rows, parameter, sparse=True)
    return (picked * data[rows]).sum().to(torch.float64)
