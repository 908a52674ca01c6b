"""One buffer for each dtype: the gradients are copied into it, reduced at once, and copied back."""

import torch
import torch.distributed as dist
from everyrank.suites import Subject


class FlatBuffer:
    def __init__(self, model, optimizer_class, *args, **kwargs):
        self.model = model
        for tensor in [*model.parameters(), *model.buffers()]:
            value = tensor.data.contiguous()
            dist.broadcast(value, 0)
            tensor.data.copy_(value)
        self.optimizer = optimizer_class(model.parameters(), *args, **kwargs)

    def step(self, *batches, max_norm=None):
        self.optimizer.zero_grad()
        for batch in batches:
            batch.loss(self.model).backward()
        self.reduce()
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), max_norm)
        self.optimizer.step()

    def reduce(self):
        params = [param for param in self.model.parameters() if param.requires_grad]
        used = torch.tensor([param.grad is not None for param in params], dtype=torch.uint8)
        dist.all_reduce(used, op=dist.ReduceOp.MAX)
        params = [param for param, is_used in zip(params, used.tolist(), strict=True) if is_used]
        for param in params:
            if param.grad is None:
                param.grad = torch.zeros_like(param)
        for dtype in sorted({param.dtype for param in params}, key=str):
            grads = [param.grad for param in params if param.dtype == dtype]
            flat = torch.cat([grad.reshape(-1) for grad in grads])
            dist.all_reduce(flat)
            flat /= dist.get_world_size()
            for grad, reduced in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
                grad.copy_(reduced.view(grad.shape))

    def parameters(self):
        return dict(self.model.named_parameters())

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    def state_dict(self):
        return self.model.state_dict(), self.optimizer.state_dict()

    def load_state_dict(self, state):
        self.model.load_state_dict(state[0])
        self.optimizer.load_state_dict(state[1])


SUBJECT = Subject(
    "plain.FlatBuffer",
    contract="trainer",
    build=FlatBuffer,
    declares={"trusts-order"},
    lacks=["closures", "groups", "add_param_group", "owns", "sparse"],
)
