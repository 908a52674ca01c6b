"""torch.distributed.pipelining: the layers of a model lie on the ranks in turn, each rank has one stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from everyrank.suites.engine.subject import Lack, Subject
from everyrank.suites.trainer.arena import TRUSTS_INIT, TRUSTS_ORDER
from torch import fx, nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.fx.passes.split_module import split_module

_NO_CHAIN = "the model is no chain of stages"


class Pipeline:
    """A stage of a model. Each row of a batch is a microbatch of the schedule."""

    part = (0, 1)
    schedule_class: ClassVar[str] = "ScheduleGPipe"

    def __init__(
        self,
        model: nn.Module,
        optimizer_class: Callable[..., Any],
        *args: Any,
        groups: Sequence[Mapping[str, Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        self.model = model
        self.stages = stages(model, dist.get_world_size())
        self.owners = owners(model, self.stages)
        dealt = [{"params": list(self.owners)}] if groups is None else groups
        self.optimizer = optimizer_class([self._own(group) for group in dealt], *args, **kwargs)
        self.schedules: dict[int, Any] = {}
        self.rows: list[Any] = []

    def _own(self, group: Mapping[str, Any]) -> dict[str, Any]:
        """Return a group with the parameters of this rank's stage, which may be none."""
        rank = dist.get_rank()
        own = [self.model.get_parameter(name) for name in group["params"] if self.owners[name] == rank]
        return {**group, "params": own}

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        groups: list[dict[str, Any]] = self.optimizer.param_groups
        return groups

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        self.optimizer.add_param_group(self._own(group))

    def step(self, *batches: Any, max_norm: float | None = None) -> None:
        rank, last = dist.get_rank(), dist.get_world_size() - 1
        self.rows = [row for batch in batches for row in batch.rows()]
        self.optimizer.zero_grad()
        inputs = [torch.cat([row.inputs for row in self.rows])] if rank == 0 else []
        self._schedule().step(*inputs, target=torch.arange(len(self.rows)) if rank == last else None)
        if max_norm is not None:
            self._clip(max_norm)
        self.optimizer.step()

    def _schedule(self) -> Any:
        """Return the schedule for as many microbatches as there are rows."""
        rank, size, count = dist.get_rank(), dist.get_world_size(), len(self.rows)
        if count not in self.schedules:
            # Imported late: it imports torch._dynamo, which a collection does not need.
            from torch.distributed import pipelining

            stage = pipelining.PipelineStage(self.stages[rank], rank, size, self.rows[0].inputs.device)
            self.schedules[count] = getattr(pipelining, self.schedule_class)(
                stage,
                n_microbatches=count,
                loss_fn=lambda output, number: self.rows[int(number)].criterion(output),
                scale_grads=False,  # the losses of the rows add up
            )
        return self.schedules[count]

    def _clip(self, max_norm: float) -> None:
        """Clip by the norm over all stages, as torch's parts for it allow."""
        own = [parameter for group in self.param_groups for parameter in group["params"]]
        norm = nn.utils.get_total_norm([parameter.grad for parameter in own if parameter.grad is not None])
        squares = norm.double().square()
        dist.all_reduce(squares)
        nn.utils.clip_grads_with_norm_(own, max_norm, squares.sqrt())

    def parameters(self) -> dict[str, torch.Tensor]:
        found = {}
        for name, owner in self.owners.items():
            value = self.model.get_parameter(name).detach().clone(memory_format=torch.contiguous_format)
            dist.broadcast(value, owner)
            found[name] = value
        return found

    def state_dict(self) -> dict[str, Any]:
        """Put the states of all stages together, by the names of the parameters."""
        rank = dist.get_rank()
        model = get_model_state_dict(self.model)
        own = {name: value for name, value in model.items() if self.owners.get(name, 0) == rank}
        optimizer = get_optimizer_state_dict(self.model, self.optimizer)
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, (own, optimizer))
        groups = [
            {**same[0], "params": [name for group in same for name in group["params"]]}
            for same in zip(*(optimizer["param_groups"] for _, optimizer in found), strict=True)
        ]
        return {
            "model": {name: value for own, _ in found for name, value in own.items()},
            "optimizer": {
                "state": {name: value for _, optimizer in found for name, value in optimizer["state"].items()},
                "param_groups": groups,
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        set_model_state_dict(self.model, state["model"])
        if any(group["params"] for group in self.param_groups):
            set_optimizer_state_dict(self.model, self.optimizer, state["optimizer"])
            return
        # Torch refuses a state for a stage without parameters, which has options, too: a scheduler goes on from them.
        for group, saved in zip(self.param_groups, state["optimizer"]["param_groups"], strict=True):
            group.update({name: value for name, value in saved.items() if name != "params"})


class OneForwardOneBackward(Pipeline):
    schedule_class = "Schedule1F1B"


def stages(model: nn.Module, count: int) -> list[nn.Module]:
    """Cut a model into stages with equally many operations. Each stage must feed the next one, and no other."""
    if "forward" in vars(model):
        raise NotImplementedError(_NO_CHAIN)  # the tracer looks at the class alone
    traced = fx.symbolic_trace(model)
    operations = [node for node in traced.graph.nodes if node.op.startswith("call_")]
    stage_of = {node: number * count // len(operations) for number, node in enumerate(operations)}
    stage_of |= {node: 0 for node in traced.graph.nodes if node.op == "placeholder"}
    fed: dict[int, set[fx.Node]] = {number: set() for number in range(count)}
    for node in operations:
        before = {source for source in node.all_input_nodes if stage_of.get(source, stage_of[node]) != stage_of[node]}
        fed[stage_of[node]] |= before
        if any(stage_of[source] != stage_of[node] - 1 for source in before):
            raise NotImplementedError(_NO_CHAIN)
    if any(node.op == "get_attr" for node in traced.graph.nodes):
        raise NotImplementedError(_NO_CHAIN)  # a parameter that is used outside of its layer
    if len(operations) < count or any(len(nodes) != 1 for number, nodes in fed.items() if number):
        raise NotImplementedError(_NO_CHAIN)
    split = split_module(traced, model, lambda node: stage_of[node])
    return [split.get_submodule(f"submod_{number}") for number in range(count)]


def owners(model: nn.Module, stages: Sequence[nn.Module]) -> dict[str, int]:
    """Return the rank of each parameter by its name. A parameter of no stage lies on rank 0."""
    held: dict[nn.Parameter, int] = {}
    for number, stage in enumerate(stages):
        for parameter in stage.parameters():
            if held.setdefault(parameter, number) != number:
                raise NotImplementedError(_NO_CHAIN)
    return {name: held.get(parameter, 0) for name, parameter in model.named_parameters()}


_CHAIN = Lack(NotImplementedError, _NO_CHAIN)
_LACKS = {
    "parity.closure[*]": Lack((TypeError, NotImplementedError), "a schedule computes the loss once"),
    "parity.sparse[*]": _CHAIN,
    "errors.arguments[SparseAdam-*]": _CHAIN,
    "state.in-order[*]": _CHAIN,
} | dict.fromkeys(
    [
        f"parity.models[{model}*]"
        for model in (
            "tied-",
            "mixed-dtypes-",
            "complex-",
            "unused-on-",
            "unused-later-",
            "scalars-",
            "buffers-",
            "counting-",
            "draws-",
        )
    ]
    + [
        "parity.models[few-rows-*]",
        "parity.models[gaps-*]",
        "parity.models[empty-*]",
        "clip[tied-*]",
        "clip[mixed-dtypes-*]",
    ]
    + [
        "accumulate[sparse-*]",
        "accumulate[unused-*]",
        "accumulate[first-*]",
        "accumulate[last-*]",
        "errors.everywhere[some-*]",
        "equal[unused-*]",
    ]
    + ["state.round-trip[tied-*]", "state.round-trip[buffers-*]", "written[buffers-*]"],
    _CHAIN,
)
_FEW_ROWS = {"mean[one-*]": Lack(ValueError, "Number of microbatches (1) must be greater than or equal")}


GPIPE = Subject(
    "torch.ScheduleGPipe",
    contract="trainer",
    build=Pipeline,
    sizes=(2, 3),
    declares=frozenset({TRUSTS_INIT, TRUSTS_ORDER}),
    lacks=_LACKS,
    known="gpipe.toml",
    turn=3,
)
ONE_FORWARD_ONE_BACKWARD = replace(
    GPIPE,
    name="torch.Schedule1F1B",
    build=OneForwardOneBackward,
    lacks=_LACKS | _FEW_ROWS,
    known="one_forward_one_backward.toml",
    variant_of=GPIPE,
    touches=("accumulate", "late", "loss", "mean", "parity.models"),
)
