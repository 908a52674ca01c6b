"""States that are wrong: one entry of a trainer's state is missing, extra or misshapen."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Literal

import torch
from everyrank.suites.arena.subject_errors import subject_acts

Mutation = Literal["missing", "extra", "misshapen", "transposed"]
Part = Literal["model", "optimizer"]


def mutate(state: Any, part: Part, mutation: Mutation, count: int) -> Any:
    """Change one entry of a state, of the parameters' values or of the optimizer's states; return its key."""
    entries = next(_entries(state, part == "model", count), None)
    if entries is None:
        text = "a dict with a tensor for each parameter" if part == "model" else "a dict with a dict for each"
        with subject_acts():
            raise NotImplementedError(f"the state has no entries that can be changed: no {text}")
    last = list(entries)[-1]
    if mutation == "transposed":
        last, key = next((name, key) for name, entry in entries.items() for key in entry if _is_oblong(entry[key]))
        entries[last][key] = entries[last][key].t().clone()
    elif mutation == "missing":
        del entries[last]
    elif mutation == "extra":
        entries["one more" if isinstance(last, str) else last + 1] = copy.deepcopy(entries[last])
    elif part == "model":
        entries[last] = _misshapen(entries[last])
    else:
        key = next(key for key, value in entries[last].items() if isinstance(value, torch.Tensor) and value.dim())
        entries[last][key] = _misshapen(entries[last][key])
    return last


def overwrite(state: Any, names: Collection[str]) -> bool:
    """Overwrite the parameters of these names in a state, and the buffers beside them; return whether there are any.

    Nothing else is: torch.optim goes on with the very tensors that it has loaded.
    """
    found = [each for each in _entries(state, True, len(names)) if each.keys() >= set(names)][:1]
    for value in (value for each in found for value in each.values()):
        value.detach().fill_(7)
    return bool(found)


def _is_oblong(value: Any) -> bool:
    """Return whether this is a matrix whose shape its transpose does not have."""
    return isinstance(value, torch.Tensor) and value.dim() == 2 and value.shape[0] != value.shape[1]


def _misshapen(tensor: torch.Tensor) -> torch.Tensor:
    return torch.cat([tensor, tensor]) if tensor.numel() else tensor.new_zeros(1)


def _entries(state: Any, values: bool, count: int) -> Iterator[dict[Any, Any]]:
    """Yield the dicts in a state that have a tensor, or a dict with a tensor, for each parameter."""
    if isinstance(state, (list, tuple)):  # such as what get_state_dict returns
        for part in state:
            yield from _entries(part, values, count)
    if not isinstance(state, Mapping):
        return
    fits: Callable[[Any], bool] = (
        (lambda value: isinstance(value, torch.Tensor))
        if values
        else (lambda value: isinstance(value, Mapping) and any(map(_is_tensor, value.values())))
    )
    if len(state) >= count and all(map(fits, state.values())):
        yield state  # type: ignore[misc]
    for value in state.values():
        yield from _entries(value, values, count)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and bool(value.dim())
