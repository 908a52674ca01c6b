"""A wrapper of one's own: ranks train on parts of a batch, and their gradients are averaged in one piece."""

import torch
import torch.distributed as dist
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

NONE, DENSE, SPARSE = 0.0, 1.0, 2.0


class Averaged:
    def __init__(self, model, optimizer_class, *args, **kwargs):
        self.model = model
        self.named = dict(sorted(model.named_parameters()))  # one order on all ranks, however they registered them
        for _, tensor in sorted(model.state_dict().items()):
            whole = tensor.contiguous()  # gloo would send the gaps of a strided tensor
            dist.broadcast(whole, src=0)  # ranks begin alike, whatever their seeds
            tensor.copy_(whole)
        self.optimizer = optimizer_class(model.parameters(), *args, **kwargs)

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    def step(self, *batches, max_norm=None):
        self.optimizer.zero_grad()
        for batch in batches:
            batch.loss(self.model).backward()
        self.average()
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), max_norm)
        self.optimizer.step()

    def average(self):
        """Average the gradients. A parameter that no rank has used keeps none, or the optimizer would decay it."""
        parameters = list(self.named.values())
        kinds = torch.tensor([kind_of(parameter.grad) for parameter in parameters])
        dist.all_reduce(kinds, op=dist.ReduceOp.MAX)  # what one rank has, all must send
        used = dict(zip(parameters, kinds.tolist(), strict=True))
        for parameter in (each for each, kind in used.items() if kind == SPARSE):
            mine = torch.zeros_like(parameter).to_sparse(1) if parameter.grad is None else parameter.grad
            parameter.grad = summed(mine.coalesce()) / dist.get_world_size()
        for dtype in sorted({parameter.dtype for parameter in parameters}, key=str):
            alike = [each for each, kind in used.items() if kind == DENSE and each.dtype == dtype]
            if alike:
                gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in alike]
                mean = summed(_flatten_dense_tensors(gradients)) / dist.get_world_size()
                for parameter, part in zip(alike, _unflatten_dense_tensors(mean, gradients), strict=True):
                    parameter.grad = part

    def parameters(self):
        return dict(self.model.named_parameters())

    def state_dict(self):
        """By name, so that a model that registered its parameters in another order can load it."""
        state = {name: self.optimizer.state[each] for name, each in self.named.items()}
        (group,) = self.optimizer.param_groups
        options = {key: value for key, value in group.items() if key != "params"}
        return {"model": self.model.state_dict(), "state": state, "options": options}

    def load_state_dict(self, state):
        self.model.load_state_dict(state["model"])
        names = {each: name for name, each in self.named.items()}
        (group,) = self.optimizer.param_groups
        order = [names[each] for each in group["params"]]
        if set(order) != set(state["state"]):
            raise ValueError(f"the state is of {sorted(state['state'])}, the optimizer of {sorted(order)}")
        for name, entries in state["state"].items():
            for key, value in entries.items():
                if torch.is_tensor(value) and value.dim() and value.shape != self.named[name].shape:
                    raise ValueError(f"{key} of {name} has the shape {tuple(value.shape)}")
        numbered = {number: state["state"][name] for number, name in enumerate(order)}
        groups = [{**state["options"], "params": list(numbered)}]
        self.optimizer.load_state_dict({"state": numbered, "param_groups": groups})


def kind_of(gradient):
    return NONE if gradient is None else SPARSE if gradient.is_sparse else DENSE


def summed(gradient):
    dist.all_reduce(gradient)
    return gradient
