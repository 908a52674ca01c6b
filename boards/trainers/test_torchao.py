"""torchao: AdamW that keeps its state in 8 bits, 4 bits or fp8, under torch's wrappers."""

from __future__ import annotations

import io
import shutil
import tempfile
import weakref
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from everyrank.fixtures.optimizers import Row, Variant
from everyrank.suites import conformance
from everyrank.suites.engine.subject import Bound
from everyrank.suites.trainer.subjects.sharded import Fsdp2
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from wrappers import SIZES, WIDE, under

pytest.importorskip("torchao", reason="pip install torchao")
from torchao.optim import AdamW4bit, AdamW8bit, AdamWFp8
from torchao.optim.subclass_4bit import OptimState4bit
from torchao.optim.subclass_8bit import OptimState8bit
from torchao.optim.subclass_fp8 import OptimStateFp8

#: A step is compiled for each shape, which takes longer than all laws: the same kernels, one by one.
torch.compiler.set_stance("force_eager")

#: The class of each optimizer's state.
STATES = {AdamW8bit: OptimState8bit, AdamW4bit: OptimState4bit, AdamWFp8: OptimStateFp8}


def copied(state: torch.Tensor, _: Any) -> torch.Tensor:
    """Return a copy of a state as a file has it. It has no ``clone``, by which a tensor is copied in memory."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    clone: torch.Tensor = torch.load(file)
    return clone


for each in STATES.values():
    each.__deepcopy__ = copied


class Checkpointed(Fsdp2):
    """Its state is saved by torch.distributed.checkpoint: a shard of low bits cannot be cut from a whole one."""

    def state_dict(self) -> Any:
        folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
        dist.broadcast_object_list(folder)
        if dist.get_rank() == 0:
            weakref.finalize(self, shutil.rmtree, folder[0])
        dcp.save(self._sharded(), checkpoint_id=folder[0])
        return folder[0]

    def load_state_dict(self, state: Any) -> None:
        sharded = self._sharded()
        dcp.load(sharded, checkpoint_id=state)
        model, optimizer = sharded["model"], sharded["optimizer"]
        set_state_dict(self.wrapped, self.optimizer, model_state_dict=model, optim_state_dict=optimizer)

    def _sharded(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.wrapped, self.optimizer)
        return {"model": model, "optimizer": optimizer}


DECAYS = (Variant("decay", {"lr": 0.002, "weight_decay": 0.5}),)
ROWS = [Row(each, DECAYS, model=WIDE) for each in STATES]
BOUND = Bound(2e-4, "it computes in fp32, where another last digit of a sum may choose the next code")
SUBJECTS = (
    under("ddp", "torchao", ROWS, bound=BOUND),
    under("fsdp2", "torchao", ROWS, build=Checkpointed, bound=BOUND),
    under("zero", "torchao", ROWS, bound=BOUND),
)


@conformance(*SUBJECTS)
def test_torchao(case: Any) -> None:
    case.run()


@pytest.mark.parametrize("optimizer", STATES, ids=lambda optimizer: optimizer.__name__)
def test_each_matrix_has_a_state_of_low_bits(optimizer: Any) -> None:
    model = WIDE.build()
    model(torch.ones(2, 4)).sum().backward()
    trained = optimizer(model.parameters())
    trained.step()
    for matrix in (model.first.weight, model.last.weight):
        state = trained.state[matrix]["exp_avg"]
        assert isinstance(state, STATES[optimizer])
        smallest = matrix[: -(-len(matrix) // max(SIZES))].numel()  # what FSDP2 gives a rank, if anything
        assert smallest >= 4096
        assert smallest % state.block_size == 0
