"""In place: hooks around the forward; the outputs pass a function whose backward asks for a sync at its end."""

import torch
import torch.distributed as dist
from everyrank.suites import Lack, Subject
from torch.autograd import Variable
from torch.utils._pytree import tree_map


class AtTheEnd(torch.autograd.Function):
    @staticmethod
    def forward(ctx, output, state):
        ctx.state = state
        return output.view_as(output)

    @staticmethod
    def backward(ctx, grad):
        if ctx.state.syncs and not ctx.state.queued:
            ctx.state.queued = True
            Variable._execution_engine.queue_callback(ctx.state.reduce)
        return grad, None


class State:
    def __init__(self, module, broadcast_buffers):
        self.module, self.broadcast_buffers, self.syncs, self.queued = module, broadcast_buffers, True, False

    def before(self, module, args):
        self.queued = False  # a backward that raised has left it set
        if self.broadcast_buffers:
            send(list(module.buffers()))

    def after(self, module, args, output):
        return tree_map(self.watched, output)

    def watched(self, output):
        differentiable = isinstance(output, torch.Tensor) and output.requires_grad
        return AtTheEnd.apply(output, self) if differentiable else output

    def reduce(self):
        self.queued = False
        params = [param for param in self.module.parameters() if param.requires_grad]
        used = torch.tensor([param.grad is not None for param in params], dtype=torch.int)
        dist.all_reduce(used)
        params = [param for param, count in zip(params, used.tolist(), strict=True) if count]
        for param in params:
            param.grad = torch.zeros_like(param) if param.grad is None else param.grad
        for dtype in dict.fromkeys(param.dtype for param in params):
            grads = [param.grad for param in params if param.dtype == dtype]
            flat = torch.cat([grad.flatten() for grad in grads]) / dist.get_world_size()
            dist.all_reduce(flat)
            for grad, mean in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
                grad.copy_(mean.view_as(grad))


def send(tensors):
    for tensor in tensors:
        value = tensor.detach().clone(memory_format=torch.contiguous_format)
        dist.broadcast(value, src=0)
        tensor.detach().copy_(value)


def replicate(module, broadcast_buffers=True):
    send([*module.parameters(), *module.buffers()])
    state = State(module, broadcast_buffers)
    module.register_forward_pre_hook(state.before)
    module.register_forward_hook(state.after)

    def set_requires_gradient_sync(on):
        state.syncs = on

    module.set_requires_gradient_sync = set_requires_gradient_sync
    return module


NO_OPTION = Lack(TypeError, "no such option")
DENSE = Lack(RuntimeError, "dense gradients alone")
SUBJECT = Subject(
    "plain.in-place",
    contract="replicate",
    build=replicate,
    lacks=dict.fromkeys(("ignored[*]", "device-id[*]", "inputs[gpu-*]"), NO_OPTION)
    | dict.fromkeys(("parity.train[SparseAdam-*]", "mean[*sparse*]", "accumulate[sparse-*]"), DENSE),
)
