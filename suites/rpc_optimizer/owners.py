"""The parameters that a rank owns, and what other ranks let it do with them over RPC."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed.rpc as rpc
from everyrank.suites.arena.subject_errors import noise
from everyrank.suites.rpc_optimizer.model import Model

#: The data of one parameter for a backward, and what its gradient is like.
Datum = tuple[torch.Tensor, str]

#: The seed of all values.
_SEED = 7

#: The number from which the values of all parameters are made that are alike.
ALIKE = 99

#: Near the least numbers of float32, and of bfloat16.
TINY = 2.0**-110

#: The parameters of this rank, by number.
mine: dict[int, torch.Tensor] = {}

#: The gradients that were left on them by hand.
_left: dict[torch.Tensor, torch.Tensor] = {}


def call(owner: int, function: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    """Start a function on an owner; return what waits for its result. A client's own part needs no call."""
    if owner == rpc.get_worker_info().id:
        result = function(*args)
        return lambda: result
    wait: Callable[[], Any] = rpc.rpc_async(f"worker{owner}", function, args=args).wait
    return wait


def new_parameter(model: Model, number: int) -> torch.Tensor:
    """Return a leaf with the value, the memory layout and the dtype with which a parameter starts on both sides."""
    param = model.params[number]
    value = noise(
        param.shape, getattr(torch, param.dtype or model.dtype), _generator(ALIKE if param.alike else number, 1)
    )
    value = value * TINY if param.tiny else value
    if param.layout == "transposed":
        held = value.t().contiguous().t()
    elif param.layout == "rows":
        held = torch.stack([value, value], 1)[:, 0]
    else:
        held = value.clone()
    return held.detach().requires_grad_(not param.frozen)


@functools.cache
def input_of(shape: torch.Size, dtype: torch.dtype, step: int, number: int) -> torch.Tensor:
    """Return an input. Do not write to it: it is shared by the subject's owners, the reference and other cases."""
    return noise(shape, dtype, _generator(step, number, 2))


def _generator(*seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(hash((_SEED, *seed)) % 2**31)


# --- functions that run on the owners -------------------------------------------------------------------------


def own(model: Model) -> None:
    """Make the parameters of this rank."""
    disown()
    here = [number for number, param in enumerate(model.params) if param.owner == rpc.get_worker_info().id]
    made = {number: new_parameter(model, number) for number in here if model.tensor(number) == number}
    made |= _in_one_storage({number: made[number] for number in made if model.params[number].alike == "all"})
    mine.update({number: made[model.tensor(number)] for number in here})


def _in_one_storage(params: Mapping[int, torch.Tensor]) -> dict[int, torch.Tensor]:
    """Return the same parameters side by side in one storage, as those of a flat buffer."""
    if not params:
        return {}
    extents = [param.untyped_storage().nbytes() // param.element_size() for param in params.values()]
    storage = torch.empty(sum(extents), dtype=next(iter(params.values())).dtype)
    found = {}
    for (number, param), part in zip(params.items(), storage.split(extents), strict=True):
        view = part.as_strided(param.shape, param.stride(), part.storage_offset()).copy_(param.detach())
        found[number] = view.detach().requires_grad_(param.requires_grad)
    return found


def disown() -> None:
    mine.clear()
    _left.clear()


def rrefs_of(numbers: Sequence[int]) -> list[Any]:
    return [rpc.RRef(mine[number]) for number in numbers]


def values_of(numbers: Sequence[int]) -> dict[int, torch.Tensor]:
    return {number: mine[number].detach().clone() for number in numbers}


def losses_and_values(
    data: Mapping[int, Datum], watched: Sequence[int]
) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
    losses = [loss_of(mine[number], *datum) for number, datum in data.items()]
    return torch.stack(losses) if losses else torch.zeros(0, dtype=torch.float64), values_of(watched)


def leave_gradient(number: int) -> None:
    """Set the ``.grad`` of a parameter by hand."""
    mine[number].grad = torch.ones_like(mine[number])
    _left[mine[number]] = torch.ones_like(mine[number])


def gradient_was(number: int) -> str:
    """Return what was done to the ``.grad`` that was left, or was not there: ``cleared``, ``set``, or nothing."""
    found, left = mine[number].grad, _left.get(mine[number])
    if found is None:
        return "" if left is None else "cleared"
    return "" if left is not None and torch.equal(found, left) else "set"


def device_of(number: int) -> str:
    return str(mine[number].device)


def non_leaf(rref: Any) -> torch.Tensor:
    """Return, on an owner, a tensor that is not a leaf."""
    result: torch.Tensor = rref.local_value() * 2
    return result


# --- losses ---------------------------------------------------------------------------------------------------


def loss_of(parameter: torch.Tensor, data: torch.Tensor, gradient: str) -> torch.Tensor:
    """Return the loss of one parameter with these data; its gradient is of this kind."""
    if gradient in ("sparse", "repeated"):  # two rows of an embedding; not coalesced: the first row twice
        last = parameter.shape[0] - 1
        rows = torch.tensor([0, last] if gradient == "sparse" else [0, last, 0])
        picked = torch.nn.functional.embedding(rows, parameter, sparse=True)
        return (picked * data[rows]).sum().to(torch.float64)
    complex_ = parameter.is_complex()
    flat, other = (torch.view_as_real(parameter), torch.view_as_real(data)) if complex_ else (parameter, data)
    total = (flat * other).sum()
    if gradient != "linear":  # of a linear one, a step leaves the graph usable
        total = total + (flat * flat).sum() * 0.25
    total = total.to(torch.float64)
    return total * {"zero": 0, "tiny": TINY}.get(gradient, 1)
