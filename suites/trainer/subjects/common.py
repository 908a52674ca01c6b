"""What the adapters of torch's trainers share: an optimizer over a model that a wrapper has prepared."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from everyrank.suites.engine.subject import Lack
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

#: The lack of a subject whose ranks each step a part of the parameters.
NO_LBFGS = Lack(NotImplementedError, "LBFGS needs all parameters on one rank")

_FULL = StateDictOptions(full_state_dict=True)


class Adapter:
    """A subject whose gradients are right after the backward of the last microbatch, as those of DDP are."""

    def __init__(
        self,
        model: nn.Module,
        optimizer_class: Callable[..., Any],
        *args: Any,
        groups: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        self.model = model
        self.wrapped: Any = self.wrap(model)
        named = self.named()
        parameters = list(named.values()) if groups is None else [self.with_tensors(group) for group in groups]
        self.optimizer = self.optimize(optimizer_class, parameters, args, kwargs)

    def wrap(self, model: nn.Module) -> Any:
        """Return the module that is called in place of the model."""
        return model

    def optimize(self, optimizer_class: Callable[..., Any], parameters: list[Any], args: Any, kwargs: Any) -> Any:
        return optimizer_class(parameters, *args, **kwargs)

    def named(self) -> dict[str, Any]:
        """Return the parameters to be optimized, by the names that they have in the model."""
        return dict(self.model.named_parameters())

    def with_tensors(self, group: Mapping[str, Any]) -> dict[str, Any]:
        named = self.named()
        return {**group, "params": [named[name] for name in group["params"]]}

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        groups: list[dict[str, Any]] = self.optimizer.param_groups
        return groups

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        self.optimizer.add_param_group(self.with_tensors(group))

    def step(self, *batches: Any, max_norm: float | None = None) -> Any:
        def closure() -> torch.Tensor:
            self.wrapped.zero_grad()
            losses = []
            for number, batch in enumerate(batches, 1):
                with contextlib.nullcontext() if number == len(batches) else self.unsynced():
                    loss = batch.loss(self.wrapped)
                    loss.backward()
                    losses.append(loss.detach())
            if max_norm is not None:
                self.clip(max_norm)
            return self.mean(torch.stack(losses).sum())

        return self.update(closure)

    def update(self, closure: Callable[[], torch.Tensor]) -> Any:
        return self.optimizer.step(closure)

    def unsynced(self) -> AbstractContextManager[Any]:
        """Accumulate the gradients of a microbatch."""
        return contextlib.nullcontext()

    def clip(self, max_norm: float) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), max_norm)

    def mean(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of all ranks: some optimizers look at it."""
        dist.all_reduce(loss)
        return loss / dist.get_world_size()

    def parameters(self) -> dict[str, torch.Tensor]:
        return {name: value.detach() for name, value in self.model.named_parameters()}

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


class FullState(Adapter):
    """A subject whose state is made whole by the state_dict API of torch.distributed.checkpoint."""

    def state_dict(self) -> dict[str, Any]:
        try:
            model, optimizer = get_state_dict(self.wrapped, self.optimizer, options=_FULL)
        except Exception as error:
            # FullyShardedDataParallel has begun a profile without `with`: it ends with the frame that has it, and an
            # end after the next one's beginning is an error of its own, in whatever runs then.
            traceback.clear_frames(error.__traceback__)
            raise
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        set_state_dict(
            self.wrapped,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
            options=_FULL,
        )
