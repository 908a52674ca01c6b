"""The plainest trainer: sum each gradient over the ranks, divide, and let a torch optimizer step."""

import torch
import torch.distributed as dist
from everyrank.suites import Subject


class AllReduce:
    def __init__(self, model, optimizer_class, *args, groups=None, **kwargs):
        self.model = model
        self.named = dict(model.named_parameters())
        for tensor in [*model.parameters(), *model.buffers()]:
            value = tensor.data.contiguous()
            dist.broadcast(value, src=0)
            tensor.data.copy_(value)
        params = model.parameters() if groups is None else [self.group(group) for group in groups]
        self.optimizer = optimizer_class(params, *args, **kwargs)

    def group(self, group):
        return group | {"params": [self.named[name] for name in group["params"]]}

    def step(self, *batches, max_norm=None):
        self.optimizer.zero_grad()
        for batch in batches:
            batch.loss(self.model).backward()
        self.average()
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), max_norm)
        self.optimizer.step()

    def average(self):
        for param in self.named.values():
            kind = torch.tensor(0 if param.grad is None else 2 if param.grad.is_sparse else 1)
            dist.all_reduce(kind, op=dist.ReduceOp.MAX)
            if kind > 0:
                if param.grad is None:
                    param.grad = torch.zeros_like(param)
                if kind == 2 and not param.grad.is_sparse:
                    param.grad = param.grad.to_sparse(1)
                dist.all_reduce(param.grad)
                param.grad /= dist.get_world_size()

    def parameters(self):
        return self.named

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    def add_param_group(self, group):
        self.optimizer.add_param_group(self.group(group))

    def state_dict(self):
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state):
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])

    def owns(self):
        return {name: ([((0,) * p.dim(), p.shape)], dist.get_world_size()) for name, p in self.named.items()}


SUBJECT = Subject(
    "plain.AllReduce", contract="trainer", build=AllReduce, declares={"trusts-order"}, lacks=["closures"]
)
