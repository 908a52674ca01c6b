"""In place, by names: at the end of a backward all ranks gather the gradients of all, and take the mean of each."""

import torch
import torch.distributed as dist
from everyrank.suites import Lack, Subject
from torch.autograd import Variable


class Replicated:
    """Stands before the class of the module."""

    syncs, queued = True, False

    def forward(self, *args, **kwargs):
        self.queued = False  # a backward that raised has left it set
        for _, buffer in sorted(self.named_buffers()):
            buffer.copy_(first(buffer))
        for param in self.parameters():
            if param.requires_grad and not getattr(param, "is_watched", False):
                param.is_watched = True
                param.register_post_accumulate_grad_hook(self.ask)
        return super().forward(*args, **kwargs)

    def ask(self, param):
        if self.syncs and not self.queued:
            self.queued = True
            Variable._execution_engine.queue_callback(self.sync)

    @torch.no_grad()
    def sync(self):
        self.queued = False
        mine = {name: param.grad for name, param in self.named_parameters() if param.grad is not None}
        everything = [None] * dist.get_world_size()
        dist.all_gather_object(everything, mine)
        for name, param in self.named_parameters():
            found = [grads[name] for grads in everything if name in grads]
            if found:
                param.grad = sum(grad / len(everything) for grad in found).reshape(param.shape)

    def set_requires_gradient_sync(self, on):
        self.syncs = on


def first(tensor):
    values = [tensor.detach()]
    dist.broadcast_object_list(values, src=0)
    return values[0]


def replicate(module):
    with torch.no_grad():
        for _, tensor in sorted([*module.named_parameters(), *module.named_buffers()]):
            tensor.copy_(first(tensor))
    module.__class__ = type(f"Replicated{type(module).__name__}", (Replicated, type(module)), {})
    return module


NO_OPTION = Lack(TypeError, "no such option")
DENSE = Lack(RuntimeError, "dense gradients alone")
SUBJECT = Subject(
    "plain.gather",
    contract="replicate",
    build=replicate,
    lacks=dict.fromkeys(
        ("ignored[*]", "device-id[*]", "inputs[gpu-*]", "buffers[asked-*]", "buffers[refused-*]"), NO_OPTION
    )
    | dict.fromkeys(("parity.train[SparseAdam-*]", "mean[*sparse*]", "accumulate[sparse-*]"), DENSE),
)
