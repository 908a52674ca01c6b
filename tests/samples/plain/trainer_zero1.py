"""ZeRO-1 by hand: each rank steps a part of the parameters, whose state it keeps, and broadcasts it."""

import torch
import torch.distributed as dist
from everyrank.suites import Subject


class Zero1:
    def __init__(self, model, optimizer_class, *args, **kwargs):
        self.model = model
        self.named = dict(model.named_parameters())
        for tensor in [*model.parameters(), *model.buffers()]:
            value = tensor.data.contiguous()
            dist.broadcast(value, 0)
            tensor.data.copy_(value)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        mine = list(self.named.values())[self.rank :: self.size]
        self._optimizer = optimizer_class(mine, *args, **kwargs) if mine else None

    def step(self, *batches):
        self.model.zero_grad()
        for batch in batches:
            batch.loss(self.model).backward()
        for param in self.named.values():
            used = torch.tensor([param.grad is not None]).float()
            dist.all_reduce(used)
            if param.grad is not None and param.grad.is_sparse:
                raise NotImplementedError("sparse gradients")
            if used.item():
                if param.grad is None:
                    param.grad = torch.zeros_like(param)
                dist.all_reduce(param.grad)
                param.grad.div_(self.size)
        if self._optimizer is not None:
            self._optimizer.step()
        for number, param in enumerate(self.named.values()):
            value = param.detach().contiguous()
            dist.broadcast(value, number % self.size)
            param.data.copy_(value)

    def parameters(self):
        return dict(self.named)

    def owns(self):
        mine = list(self.named)[self.rank :: self.size]
        return {
            name: ([(tuple(0 for _ in p.shape), tuple(p.shape))] if name in mine else [], 1)
            for name, p in self.named.items()
        }


SUBJECT = Subject(
    "plain.Zero1",
    contract="trainer",
    build=Zero1,
    declares={"trusts-order"},
    lacks=[
        "clipping",
        "closures",
        "groups",
        "add_param_group",
        "optimizer",
        "param_groups",
        "state_dict",
        "load_state_dict",
        "sparse",
    ],
)
