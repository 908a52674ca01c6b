"""A wrapper: a hook of each parameter asks for one sync at the end of the backward, which averages each gradient."""

import contextlib

import torch
import torch.distributed as dist
from everyrank.suites import Lack, Subject
from torch import nn
from torch.autograd import Variable


class Replica(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
        self.syncs, self.queued, self.hooked = True, False, set()
        for tensor in [*module.parameters(), *module.buffers()]:
            broadcast(tensor)
        self.register_state_dict_post_hook(without_module)
        self.register_load_state_dict_pre_hook(with_module)

    def forward(self, *args, **kwargs):
        self.queued = False  # a backward that raised has left it set
        for param in self.module.parameters():
            if param.requires_grad and param not in self.hooked:
                self.hooked.add(param)
                param.register_post_accumulate_grad_hook(self.queue)
        for buffer in self.module.buffers():
            broadcast(buffer)
        return self.module(*args, **kwargs)

    def queue(self, param):
        if self.syncs and not self.queued:
            self.queued = True
            Variable._execution_engine.queue_callback(self.sync)

    def sync(self):
        self.queued = False
        for param in self.module.parameters():
            used = torch.tensor(param.grad is not None, dtype=torch.int)
            dist.all_reduce(used)
            if used:
                if param.grad is None:
                    param.grad = torch.zeros_like(param)
                grad = param.grad.contiguous() / dist.get_world_size()
                dist.all_reduce(grad)
                param.grad.copy_(grad)

    @contextlib.contextmanager
    def no_sync(self):
        self.syncs = False
        try:
            yield
        finally:
            self.syncs = True


def without_module(replica, state, prefix, metadata):
    for key in [key for key in state if key.startswith(f"{prefix}module.")]:
        state[prefix + key.removeprefix(f"{prefix}module.")] = state.pop(key)


def with_module(replica, state, prefix, *others):
    for key in [key for key in state if key.startswith(prefix)]:
        state[f"{prefix}module.{key.removeprefix(prefix)}"] = state.pop(key)


def broadcast(tensor):
    value = tensor.detach().contiguous()
    dist.broadcast(value, 0)
    tensor.detach().copy_(value)


NO_OPTION = Lack(TypeError, "no such option")
DENSE = Lack(RuntimeError, "dense gradients alone")
SUBJECT = Subject(
    "plain.Replica",
    contract="replicate",
    build=Replica,
    lacks=dict.fromkeys(
        ("ignored[*]", "device-id[*]", "inputs[gpu-*]", "buffers[asked-*]", "buffers[refused-*]"), NO_OPTION
    )
    | dict.fromkeys(("parity.train[SparseAdam-*]", "mean[*sparse*]", "accumulate[sparse-*]"), DENSE),
)
