"""DistributedDataParallel with the optimizers that torch has for it: local SGD, names as keys, steps in backward."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from everyrank.fixtures.quiet import distributed_optim
from everyrank.suites.engine.subject import Lack, Subject
from everyrank.suites.trainer.arena import SAME_GRAPH, TRUSTS_INIT, TRUSTS_ORDER
from everyrank.suites.trainer.subjects.ddp import DDP, OF_OPTIMIZERS, Ddp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

#: From this step on gradients would stay local, and the models would be averaged every PERIOD steps. No law trains so
#: far: local SGD is further from one process than any step moves a model, so that nothing could be compared.
_WARM_UP, _PERIOD = 1000, 2


class PostLocalSgd(Ddp):
    """Local SGD in its warm-up: gradients are averaged, and the averager counts the steps."""

    def wrap(self, model: nn.Module) -> Any:
        wrapped = super().wrap(model)
        state = PostLocalSGDState(
            process_group=None, subgroup=None, start_localSGD_iter=_WARM_UP, post_local_gradient_allreduce=False
        )
        wrapped.register_comm_hook(state, post_localSGD_hook)
        return wrapped

    def optimize(self, optimizer_class: Callable[..., Any], parameters: list[Any], args: Any, kwargs: Any) -> Any:
        averager = PeriodicModelAverager(period=_PERIOD, warmup_steps=_WARM_UP)
        return distributed_optim.PostLocalSGDOptimizer(optimizer_class(parameters, *args, **kwargs), averager)

    def update(self, closure: Callable[[], torch.Tensor]) -> Any:
        loss = closure()
        self.optimizer.step()
        return loss


class Named(Ddp):
    """An optimizer whose state has the parameters' names as keys."""

    def optimize(self, optimizer_class: Callable[..., Any], parameters: list[Any], args: Any, kwargs: Any) -> Any:
        groups = parameters if parameters and isinstance(parameters[0], dict) else None
        # That the optimizer has the parameters of these groups, and no others, is what a caller with groups wants.
        warnings.filterwarnings("ignore", "Since we pass in param_groups")
        return distributed_optim._NamedOptimizer(self.named(), optimizer_class, groups, self.model, *args, **kwargs)  # type: ignore[arg-type]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        saved = state["optimizer"]
        if saved["state"]:
            self.optimizer.init_state()  # as its docstring demands
            super().load_state_dict(state)
            return
        # It refuses a state without entries, such as that of SGD without momentum.
        self.model.load_state_dict(state["model"])
        for group, options in zip(self.param_groups, saved["param_groups"], strict=True):
            group.update({key: value for key, value in options.items() if key != "params"})


class InBackward:
    """Each parameter has an optimizer of its own, which steps as soon as the parameter's gradient is averaged.

    Under DDP torch does the same, but only if there is an accelerator: see docs/findings/trainer.md.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer_class: type[torch.optim.Optimizer],
        *,
        groups: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        self.model = model
        named = dict(model.named_parameters())
        for group in [{"params": list(named)}] if groups is None else groups:
            own = {key: value for key, value in group.items() if key != "params"}
            trained = [named[name] for name in group["params"] if named[name].requires_grad]
            for parameter in trained:
                parameter.register_hook(self.averaged)
            distributed_optim._apply_optimizer_in_backward(optimizer_class, trained, {**kwargs, **own})

    def averaged(self, gradient: torch.Tensor) -> torch.Tensor:
        mean = gradient.coalesce().clone() if gradient.is_sparse else gradient.contiguous().clone()
        dist.all_reduce(mean)
        return mean / dist.get_world_size()

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        optimizers: list[torch.optim.Optimizer] = distributed_optim._get_in_backward_optimizers(self.model)
        return optimizers

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def step(self, batch: Any) -> torch.Tensor:
        loss = batch.loss(self.model)
        loss.backward()
        mean: torch.Tensor = loss.detach()
        dist.all_reduce(mean)
        return mean / dist.get_world_size()

    def parameters(self) -> dict[str, torch.Tensor]:
        return {name: value.detach() for name, value in self.model.named_parameters()}

    def state_dict(self) -> dict[str, Any]:
        states = {str(number): optimizer.state_dict() for number, optimizer in enumerate(self.optimizers)}
        return {"model": self.model.state_dict(), "optimizers": states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        for number, optimizer in enumerate(self.optimizers):
            optimizer.load_state_dict(state["optimizers"][str(number)])


POST_LOCAL_SGD = Subject(
    "torch.PostLocalSGDOptimizer",
    contract="trainer",
    build=PostLocalSgd,
    sizes=(2, 3),
    lacks={"parity.closure[*]": Lack(TypeError, "step takes no closure")},
    known="post_local_sgd.toml",
    variant_of=DDP,
    touches=(*OF_OPTIMIZERS, "accumulate", "mean"),  # its hook also reduces the gradients
)
NAMED = Subject(
    "torch._NamedOptimizer",
    contract="trainer",
    build=Named,
    sizes=(2, 3),
    known="named_optimizer.toml",
    variant_of=DDP,
    touches=OF_OPTIMIZERS,
)
IN_BACKWARD = Subject(
    "torch._apply_optimizer_in_backward",
    contract="trainer",
    build=InBackward,
    sizes=(2, 3),
    lacks={
        "accumulate[*]": Lack(TypeError, "one backward is one step"),
        "errors.everywhere[second-*]": Lack(TypeError, "one backward is one step"),
        "errors.everywhere[some-*]": Lack(TypeError, "one backward is one step"),
        "errors.everywhere[twice-*]": Lack(TypeError, "one backward is one step"),
        "errors.everywhere[microbatches-*]": Lack(TypeError, "one backward is one step"),
        "hooks[rate-*]": Lack(AttributeError, "there is one optimizer for each parameter"),
        "clip[*]": Lack(TypeError, "no gradient is left when the norm is known"),
        "non-finite[inf-clipped-*]": Lack(TypeError, "no gradient is left when the norm is known"),
        "state.strict[optimizer-*]": Lack(NotImplementedError, "each optimizer has a state of its own"),
        "parity.closure[*]": Lack(TypeError, "the loss is computed once"),
        "parity.schedule[*]": Lack(AttributeError, "there is one optimizer for each parameter"),
        "alias[scheduler-*]": Lack(AttributeError, "there is one optimizer for each parameter"),
        "alias[resumed-*]": Lack(AttributeError, "there is one optimizer for each parameter"),
        "parity.groups[added-*]": Lack(AttributeError, "no groups are added"),
        "state.round-trip[added-*]": Lack(AttributeError, "no groups are added"),
    },
    declares=frozenset({TRUSTS_INIT, TRUSTS_ORDER, SAME_GRAPH}),
    known="in_backward.toml",
    variant_of=DDP,
    touches=(*OF_OPTIMIZERS, "accumulate", "parity.models"),  # a step is a part of the backward
)
