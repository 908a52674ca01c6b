"""Optimizers that torch does not have, asked for the laws of `trainer` under DDP.

pytest test_own_optimizer.py --optimizer ScheduleFree
pytest test_own_optimizer.py --optimizer Lion
"""

import torch
from everyrank.fixtures.optimizers import Row, Variant
from everyrank.suites import Subject, conformance
from torch.nn.parallel import DistributedDataParallel

try:
    from schedulefree import SGDScheduleFree
except ImportError:
    SGDScheduleFree = None


class Lion(torch.optim.Optimizer):
    """Steps by the sign of a momentum (Chen et al., 2023). Its learning rate has no default."""

    def __init__(self, params, lr, betas=(0.9, 0.99)):
        super().__init__(params, {"lr": lr, "betas": betas})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            first, second = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is not None:
                    momentum = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
                    parameter -= group["lr"] * momentum.lerp(parameter.grad, 1 - first).sign()
                    momentum.lerp_(parameter.grad, 1 - second)


# A row is the class, and the arguments that the laws try beside none: each must change what it trains.
ROWS = [
    Row(
        Lion,
        (
            Variant("defaults", {"lr": 0.01}),  # a class that needs no argument needs no such variant
            Variant("betas", {"lr": 0.01, "betas": (0.5, 0.5)}),
        ),
    )
]

if SGDScheduleFree is not None:

    class ScheduleFree(SGDScheduleFree):
        """Steps at once: the library's optimizer wants train() before its first step."""

        def __init__(self, params, **options):
            super().__init__(params, **options)
            self.train()

    ROWS.append(Row(ScheduleFree, (Variant("momentum", {"momentum": 0.5}), Variant("warmup", {"warmup_steps": 3}))))


class Ddp:
    """Training by DDP, with whatever optimizer."""

    def __init__(self, model, optimizer_class, **options):
        self.model = model
        self.ddp = DistributedDataParallel(model, find_unused_parameters=True)
        self.optimizer = optimizer_class(model.parameters(), **options)

    def step(self, batch):
        self.optimizer.zero_grad()
        batch.loss(self.ddp).backward()
        self.optimizer.step()

    def parameters(self):
        return dict(self.model.named_parameters())


# It is asked about these optimizers alone: other subjects are asked what has to do with DDP.
SUBJECT = Subject("Ddp", contract="trainer", build=Ddp, lacks=["state_dict"], optimizers=ROWS)


@conformance(SUBJECT)
def test_ddp(case):
    case.run()
