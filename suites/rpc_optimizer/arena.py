"""The arena of ``rpc-optimizer``: rank 0 drives, and the parameters are on their owners."""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
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
    key: int = field(default_factory=itertools.count().__next__)
    """The key under which its owner holds it. A call with keys costs half of one with RRefs."""

    @property
    def name(self) -> str:
        return f"worker{self.owner}"

    def value(self) -> torch.Tensor:
        return fetch_from_owners([self])[self.key]


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
        self.hold(made)
        return made

    def hold(self, parameters: Sequence[Parameter]) -> None:
        """Let the owners find these parameters by their keys. It waits until their values exist."""
        futures = [
            rpc.rpc_async(f"worker{owner}", hold, args=({param.key: param.rref for param in mine},))
            for owner, mine in by_owner(parameters).items()
        ]
        for future in futures:
            future.wait()

    def build(self, optimizer: Any, parameters: Sequence[Parameter], *args: Any, **kwargs: Any) -> Any:
        """Build the subject over these parameters. Let its errors pass: the law handles them."""
        built = self.subject.build(optimizer, [param.rref for param in parameters], *args, **kwargs)
        check_step(self.subject, built)
        return built

    def inputs(self, parameters: Sequence[Parameter], step: int) -> list[torch.Tensor]:
        """Return new data for each parameter at each step."""
        return [
            input_of(param.twin.shape, param.twin.dtype, self.seed, step, number)
            for number, param in enumerate(parameters)
        ]

    def remote_loss(
        self, parameters: Sequence[Parameter], inputs: Sequence[torch.Tensor], loss_function: Callable[..., Any]
    ) -> torch.Tensor:
        """Return the loss over these parameters, computed by their owners."""
        total, _ = self._loss_and_values(parameters, inputs, loss_function, [])
        return total

    def _loss_and_values(
        self,
        parameters: Sequence[Parameter],
        inputs: Sequence[torch.Tensor],
        loss_function: Callable[..., Any],
        watched: Sequence[Parameter],
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """Return the loss, and the values of the watched parameters by key: both with one call to each owner."""
        given = {param.key: data for param, data in zip(parameters, inputs, strict=True)}
        used, seen = by_owner(parameters), by_owner(watched)
        answers = []
        for owner, mine in used.items():
            data = {param.key: given[param.key] for param in mine}
            keys = [param.key for param in seen.pop(owner, [])]
            answers.append(call(owner, losses_and_values, loss_function, data, keys))
        values = fetch_from_owners([param for rest in seen.values() for param in rest])
        losses = []
        for answer in answers:
            its_losses, its_values = answer()
            losses.append(its_losses)
            values.update(its_values)
        return torch.cat(losses).sum(), values

    def step(
        self,
        optimizer: Any,
        parameters: Sequence[Parameter],
        step: int,
        loss_function: Callable[..., Any] | None = None,
        watched: Sequence[Parameter] = (),
    ) -> dict[int, torch.Tensor]:
        """Do one step of the subject with the gradients of these parameters only.

        Return the values that the watched parameters had before it, by key.
        """
        values: dict[int, torch.Tensor] = {}
        with dist_autograd.context() as context_id:
            if parameters:
                inputs = self.inputs(parameters, step)
                total, values = self._loss_and_values(parameters, inputs, loss_function or loss, watched)
                dist_autograd.backward(context_id, [total])
            with subject_acts():
                optimizer.step(context_id)
        return values

    def attempt_step(self, optimizer: Any, parameters: Sequence[Parameter], step: int) -> None:
        """Do one step of the subject. Let its errors pass: the law handles them."""
        with dist_autograd.context() as context_id:
            dist_autograd.backward(context_id, [self.remote_loss(parameters, self.inputs(parameters, step), loss)])
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

    def values(self, parameters: Sequence[Parameter] | None = None) -> dict[str, torch.Tensor]:
        """Return the values of these parameters, or of all, on their owners."""
        return self.named(fetch_from_owners(self.parameters if parameters is None else parameters))

    def named(self, values: dict[int, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return values by the names of their parameters, given them by their keys."""
        return {self._name(param): values[param.key] for param in self.parameters if param.key in values}

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
    for reset in resets:
        reset()
    world.barrier()  # from here on a law may call any rank
    if world.rank != 0:
        yield None
        return
    arena = Arena(subject, point, world.size, 7)
    try:
        yield arena
    finally:
        arena.parameters.clear()


def check_step(subject: Subject, built: Any) -> None:
    """Raise unless what the subject has built has a step."""
    if not callable(getattr(built, "step", None)):
        raise BrokenAdapter(
            f"build of {subject.name} returned a {type(built).__name__}, which has no step(context_id)"
        )


@functools.cache
def input_of(shape: torch.Size, dtype: torch.dtype, seed: int, step: int, number: int) -> torch.Tensor:
    """Return an input. Do not write to it: it is shared by the subject's owners, the reference and other cases."""
    return noise(shape, dtype, _generator(seed, step, number, 2))


def _generator(*seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(hash(seed) % 2**31)


def by_owner(parameters: Iterable[Parameter]) -> dict[int, list[Parameter]]:
    groups: dict[int, list[Parameter]] = {}
    for param in parameters:
        groups.setdefault(param.owner, []).append(param)
    return groups


def call(owner: int, function: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    """Start a function on an owner; return what waits for its result. A client's own part needs no call."""
    if owner == rpc.get_worker_info().id:
        result = function(*args)
        return lambda: result
    wait: Callable[[], Any] = rpc.rpc_async(f"worker{owner}", function, args=args).wait
    return wait


def fetch_from_owners(parameters: Sequence[Parameter]) -> dict[int, torch.Tensor]:
    """Return the values of these parameters, by key."""
    answers = [call(owner, values_of, [param.key for param in mine]) for owner, mine in by_owner(parameters).items()]
    return {key: value for answer in answers for key, value in answer().items()}


#: The subject of this rank's case, for functions that run on an owner: a subject cannot be sent.
acting: list[Subject] = []

#: Laws that keep state on owners add a function that resets it: a case that failed may have left some.
resets: list[Callable[[], None]] = []


# --- functions that run on the owners -------------------------------------------------------------------------


def make(value: torch.Tensor, requires_grad: bool) -> torch.Tensor:
    return value.clone().requires_grad_(requires_grad)


#: The parameters on this owner, by key: as long as RRefs refer to them.
held: weakref.WeakValueDictionary[int, torch.Tensor] = weakref.WeakValueDictionary()


def hold(rrefs: dict[int, Any]) -> None:
    held.update({key: rref.local_value() for key, rref in rrefs.items()})


def values_of(keys: Sequence[int]) -> dict[int, torch.Tensor]:
    return {key: held[key].detach().clone() for key in keys}


def device_of(rref: Any) -> str:
    return str(rref.local_value().device)


def non_leaf(rref: Any) -> torch.Tensor:
    """Return, on an owner, a tensor that is not a leaf."""
    result: torch.Tensor = rref.local_value() * 2
    return result


def globals_now() -> dict[str, str]:
    """Describe the global state of this process, an owner or the caller."""
    return {
        "the RNG": str(hash(torch.get_rng_state().numpy().tobytes())),
        "Python's RNG": str(hash(random.getstate())),
        "the default dtype": str(torch.get_default_dtype()),
        "the grad mode": str(torch.is_grad_enabled()),
        "the warnings filters": str(len(warnings.filters)),
    }


def losses_and_values(
    loss_function: Callable[..., Any], inputs: dict[int, Any], watched: Sequence[int]
) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
    losses = torch.stack([loss_function(held[key], data) for key, data in inputs.items()])
    return losses, values_of(watched)


def loss(parameter: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    """Return a loss whose gradient depends on the data and on the parameter."""
    complex_ = parameter.is_complex()
    flat, other = (torch.view_as_real(parameter), torch.view_as_real(data)) if complex_ else (parameter, data)
    return ((flat * other).sum() + (flat * flat).sum() * 0.25).to(torch.float64)


def sparse_loss(parameter: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    """Return a loss with a sparse gradient: two rows of an embedding."""
    return _loss_of_rows(parameter, data, [0, parameter.shape[0] - 1])


def repeated_sparse_loss(parameter: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    """Return a loss with a sparse gradient that is not coalesced: it has the first row twice."""
    return _loss_of_rows(parameter, data, [0, parameter.shape[0] - 1, 0])


def linear_loss(parameter: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    """Return a loss whose gradient depends on the data alone: a step leaves its graph usable."""
    return (parameter * data).sum()


def _loss_of_rows(parameter: torch.Tensor, data: torch.Tensor, numbers: list[int]) -> torch.Tensor:
    rows = torch.tensor(numbers)
    picked = torch.nn.functional.embedding(rows, parameter, sparse=True)
    return (picked * data[rows]).sum().to(torch.float64)
