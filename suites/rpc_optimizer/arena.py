"""The arena of ``rpc-optimizer``: rank 0 drives, and the parameters are on their owners."""

from __future__ import annotations

import contextlib
import functools
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._dynamo  # the first optimizer imports it: import it once here, instead of in every rank
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from everyrank import current_world
from everyrank.suites.arena.subject_errors import noise, subject_acts
from everyrank.suites.compare.comparison import EXACT, Comparison
from everyrank.suites.engine.contract import Point
from everyrank.suites.engine.subject import Subject
from everyrank.suites.errors import BrokenAdapter, Deviation

Spec = tuple[int, tuple[int, ...]]  # owner, shape


def error_of(action: Callable[[], Any], description: str) -> Exception:
    """Return the error that the action raises, or raise a Deviation that names the action if there is none."""
    try:
        action()
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:  # frames hold RRefs, which would look as if they were left behind
            traceback.clear_frames(cause.__traceback__)
            cause = cause.__cause__ or cause.__context__
        return error
    raise Deviation(f"{description} did not raise")


#: How long in seconds an effect on another worker may take; only a failing case waits this long.
PATIENCE = 5.0


def eventually(holds: Callable[[], bool]) -> bool:
    """Return whether the condition becomes true: a worker may need a moment to free something."""
    until = time.monotonic() + PATIENCE
    while not (held := holds()) and time.monotonic() < until:
        time.sleep(0.005)
    return held


@dataclass(eq=False)
class Parameter:
    """One parameter on its owner, and its twin in the reference."""

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
    """The subject, the point and the parameters of one case, at the driver."""

    subject: Subject
    point: Point
    size: int
    seed: int
    parameters: list[Parameter] = field(default_factory=list)

    def own(
        self, specs: Sequence[Spec], dtype: torch.dtype = torch.float64, requires_grad: bool = True
    ) -> list[Parameter]:
        """Make parameters with distinct values on their owners, and their twins here."""
        made = []
        for owner, shape in specs:
            value = noise(shape, dtype, _generator(self.seed, len(self.parameters), 1))
            twin = value.clone().requires_grad_(requires_grad)
            rref = rpc.remote(f"worker{owner}", make, args=(value, requires_grad))
            made.append(Parameter(owner, twin, rref))
            self.parameters.append(made[-1])
        for param in made:
            param.value()  # wait until the remote value exists
        return made

    def build(self, optimizer: Any, parameters: Sequence[Parameter], *args: Any, **kwargs: Any) -> Any:
        """Build the subject over these parameters. Let its errors pass: the law handles them."""
        built = self.subject.build(optimizer, [param.rref for param in parameters], *args, **kwargs)
        if not callable(getattr(built, "step", None)):
            raise BrokenAdapter(
                f"build of {self.subject.name} returned a {type(built).__name__}, which has no step(context_id)"
            )
        return built

    def inputs(self, parameters: Sequence[Parameter], step: int) -> list[torch.Tensor]:
        """Return new data for each parameter at each step."""
        return [
            _input(param.twin.shape, param.twin.dtype, self.seed, step, number)
            for number, param in enumerate(parameters)
        ]

    def remote_loss(
        self, parameters: Sequence[Parameter], inputs: Sequence[torch.Tensor], loss_function: Callable[..., Any]
    ) -> torch.Tensor:
        """Return the loss over these parameters, computed by their owners."""
        pairs = list(zip(parameters, inputs, strict=True))
        futures = []
        for owner, mine in _by_owner(pairs, lambda pair: pair[0].owner):
            rrefs, data = [param.rref for param, _ in mine], [data for _, data in mine]
            futures.append(rpc.rpc_async(f"worker{owner}", remote_losses, args=(loss_function, rrefs, data)))
        return torch.cat([future.wait() for future in futures]).sum()

    def step(
        self,
        optimizer: Any,
        parameters: Sequence[Parameter],
        step: int,
        loss_function: Callable[..., Any] | None = None,
    ) -> None:
        """Do one step of the subject with the gradients of these parameters only."""
        loss_function = loss_function or loss
        with dist_autograd.context() as context_id:
            if parameters:
                total = self.remote_loss(parameters, self.inputs(parameters, step), loss_function)
                dist_autograd.backward(context_id, [total])
            with subject_acts():
                optimizer.step(context_id)

    def step_that_moves(self, optimizer: Any, parameters: Sequence[Parameter]) -> None:
        """Do a first step and check that it moves: otherwise laws about what must not move would hold."""
        before = [param.value() for param in parameters]
        self.step(optimizer, parameters, 1)
        for param, value in zip(parameters, before, strict=True):
            if torch.equal(param.value(), value):
                raise Deviation(f"a step with a gradient did not move {self._name(param)}")

    def reference_step(
        self,
        optimizer: Any,
        parameters: Sequence[Parameter],
        step: int,
        loss_function: Callable[..., Any] | None = None,
    ) -> None:
        """Do the same step here, with plain torch.optim. All other parameters have no gradient."""
        loss_function = loss_function or loss
        for param in self.parameters:
            param.twin.grad = None
        if parameters:
            inputs = self.inputs(parameters, step)
            torch.stack(
                [loss_function(param.twin, data) for param, data in zip(parameters, inputs, strict=True)]
            ).sum().backward()
        optimizer.step()

    def values(self) -> dict[str, torch.Tensor]:
        """Return the values of all parameters on their owners."""
        futures = [
            (mine, rpc.rpc_async(f"worker{owner}", fetch_all, args=([param.rref for param in mine],)))
            for owner, mine in _by_owner(self.parameters, lambda param: param.owner)
        ]
        found = {
            id(param): value for mine, future in futures for param, value in zip(mine, future.wait(), strict=True)
        }
        return {self._name(param): found[id(param)] for param in self.parameters}

    def twins(self) -> dict[str, torch.Tensor]:
        """Return the values of all parameters of the reference."""
        return {self._name(param): param.twin for param in self.parameters}

    def _name(self, param: Parameter) -> str:
        return f"parameter {self.parameters.index(param)} on worker{param.owner}"

    def comparison(self) -> Comparison:
        """Return a new comparison, bit for bit: the same kernels run on the same values."""
        comparison = Comparison(EXACT, self.subject.bound)
        comparison.start(self.twins())
        return comparison

    def on(self, owner: int, function: Callable[..., Any], *args: Any) -> Any:
        """Run a function on an owner."""
        return rpc.rpc_sync(f"worker{owner}", function, args=args)


@contextlib.contextmanager
def open_arena(subject: Subject, point: Point) -> Iterator[Arena | None]:
    """Give rank 0 its arena, and the others None: their agents serve rank 0 until it is done."""
    world = current_world()
    acting[:] = [subject]
    world.barrier()  # from here on a law may call any rank
    if world.rank != 0:
        yield None
        return
    arena = Arena(subject, point, world.size, 7)
    try:
        yield arena
    finally:
        arena.parameters.clear()


@functools.cache
def _input(shape: torch.Size, dtype: torch.dtype, seed: int, step: int, number: int) -> torch.Tensor:
    """Return an input. Do not write to it: it is shared by the subject's owners, the reference and other cases."""
    return noise(shape, dtype, _generator(seed, step, number, 2))


def _generator(*seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(hash(seed) % 2**31)


def _by_owner(values: list[Any], owner: Callable[[Any], int]) -> list[tuple[int, list[Any]]]:
    groups: dict[int, list[Any]] = {}
    for value in values:
        groups.setdefault(owner(value), []).append(value)
    return list(groups.items())


#: The subject of this rank's case, for functions that run on an owner: a subject cannot be sent.
acting: list[Subject] = []


# --- functions that run on the owners -------------------------------------------------------------------------


def make(value: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    return value.clone().requires_grad_(requires_grad)


def fetch(rref: Any) -> torch.Tensor:
    value: torch.Tensor = rref.local_value().detach().clone()
    return value


def fetch_all(rrefs: Sequence[Any]) -> list[torch.Tensor]:
    return [fetch(rref) for rref in rrefs]


def device_of(rref: Any) -> str:
    return str(rref.local_value().device)


def remote_losses(
    loss_function: Callable[..., Any], rrefs: Sequence[Any], inputs: Sequence[torch.Tensor]
) -> torch.Tensor:
    return torch.stack([loss_function(rref.local_value(), data) for rref, data in zip(rrefs, inputs, strict=True)])


def loss(parameter: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    """Return a loss whose gradient depends on the data and on the parameter."""
    complex_ = parameter.is_complex()
    flat, other = (torch.view_as_real(parameter), torch.view_as_real(data)) if complex_ else (parameter, data)
    return ((flat * other).sum() + (flat * flat).sum() * 0.25).to(torch.float64)


def sparse_loss(parameter: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    """Return a loss with a sparse gradient: two rows of an embedding."""
    rows = torch.tensor([0, parameter.shape[0] - 1])
    picked = torch.nn.functional.embedding(rows, parameter, sparse=True)
    return (picked * data[rows]).sum().to(torch.float64)
