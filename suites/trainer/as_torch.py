"""What plain torch.optim does with a state: each trainer that saves in its form has this behaviour for a base.

Its state numbers the parameters, and knows no names; it checks neither the entries nor their shapes; what it loads
has the dtype of the parameter. So it is asked, in this process, and a trainer may do the same. One that saves in a
form of its own is held to the law.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from everyrank.suites.arena.groups import error_of
from everyrank.suites.trainer.model_alone import ModelAlone
from everyrank.suites.trainer.wrong_states import Mutation, mutate

#: Why a law about names says nothing of such a state.
NUMBERED = "the state has the form of torch.optim's own, which numbers the parameters and has no names"


def numbered(state: Any) -> bool:
    """Return whether a state, or a part of it, is an optimizer's state in the form of torch.optim."""
    if isinstance(state, Mapping):
        if {"state", "param_groups"} <= state.keys() and isinstance(state["param_groups"], list):
            groups = [group for group in state["param_groups"] if isinstance(group, Mapping)]
            params = [param for group in groups for param in group.get("params", ())]
            return bool(params) and all(isinstance(param, int) for param in params)
        return any(map(numbered, state.values()))
    return isinstance(state, (list, tuple)) and any(map(numbered, state))


def takes(alone: ModelAlone, mutation: Mutation) -> bool:
    """Return whether plain torch.optim loads a state with such a wrong entry."""
    alone = alone.copy()
    state = copy.deepcopy(alone.optimizer.state_dict())
    mutate(state, "optimizer", mutation, len(state["state"]))
    return error_of(partial(alone.optimizer.load_state_dict, state)) is None


def reloaded(alone: ModelAlone) -> ModelAlone | None:
    """Return the reference as it goes on if its optimizer saves and loads; None if that makes no difference."""
    found = alone.copy()
    state = copy.deepcopy(found.optimizer.state_dict())  # what is loaded stays the given one's, in part
    if error_of(lambda: found.optimizer.load_state_dict(state)) is not None:
        return None
    before, after = (each.optimizer.state_dict()["state"] for each in (alone, found))
    return None if _alike(before, after) else found


def _alike(before: Any, after: Any) -> bool:
    """Return whether two states have the same bits in the same dtypes."""
    if isinstance(before, Mapping):
        return before.keys() == after.keys() and all(_alike(before[key], after[key]) for key in before)
    if not isinstance(before, torch.Tensor) or before.is_sparse:
        return True
    return bool(before.dtype == after.dtype and torch.equal(before.nan_to_num(), after.nan_to_num()))
