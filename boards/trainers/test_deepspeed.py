"""DeepSpeed: the engine around a model and an optimizer of torch, with each stage of ZeRO. It has no fp64."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import torch.distributed as dist
from everyrank.suites import Bound, Lack, Subject, conformance
from everyrank.suites.trainer.subjects.common import Adapter
from torch import nn

os.environ.setdefault("DS_ACCELERATOR", "cpu")
pytest.importorskip("deepspeed", reason="pip install deepspeed")
import deepspeed
import deepspeed.module_inject.auto_ep_layer
import deepspeed.runtime.superoffload.superoffload_stage3
import deepspeed.runtime.zero.muon.muon_optimizer  # as the engine does, once here and not in each case
from deepspeed.runtime.zero.utils import ZeRORuntimeException

deepspeed.ops.__compatible_ops__ = {}  # what it would compile, it needs for inference alone


class Engine(Adapter):
    stage = 0

    def wrap(self, model: nn.Module) -> Any:
        self.dtypes = {name: value.dtype for name, value in model.named_parameters()}
        return model.float()  # the engine needs the optimizer

    def optimize(self, optimizer_class: Callable[..., Any], parameters: list[Any], args: Any, kwargs: Any) -> Any:
        optimizer = optimizer_class(parameters, *args, **kwargs)
        deepspeed.comm.comm.cdb = None  # of the test before, in the same process
        deepspeed.utils.groups._release_process_group_references()
        self.wrapped, _, _, _ = deepspeed.initialize(
            model=self.model,
            optimizer=optimizer,
            dist_init_required=False,
            config={
                "train_micro_batch_size_per_gpu": 1,
                "zero_optimization": {"stage": self.stage, "stage3_param_persistence_threshold": 0},
                "zero_allow_untested_optimizer": True,
            },
        )
        return optimizer

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        groups: list[dict[str, Any]] = self.wrapped.optimizer.param_groups
        return groups

    def step(self, *batches: Any, max_norm: float = 0.0) -> Any:
        # What its configuration has, for all steps: stage 0 looks there, and ZeRO has kept it. 0 is no limit.
        self.wrapped._config.gradient_clipping = self.wrapped.optimizer.clip_grad = max_norm
        for number, batch in enumerate(batches, 1):
            self.wrapped.set_gradient_accumulation_boundary(number == len(batches))
            self.wrapped.backward(batch.loss(self.in_fp32))
        self.wrapped.step()

    def in_fp32(self, rows: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.wrapped(rows.float() if rows.is_floating_point() else rows)
        return outputs.double()

    def parameters(self) -> dict[str, torch.Tensor]:
        named = dict(self.model.named_parameters())
        with deepspeed.zero.GatheredParameters(list(named.values()), enabled=self.stage == 3):
            return {name: value.detach().to(self.dtypes[name], copy=True) for name, value in named.items()}

    def state_dict(self) -> dict[str, Any]:
        with self.folder() as folder:
            self.wrapped.save_checkpoint(folder, tag="state")
            return {path.name: torch.load(path, weights_only=False) for path in (folder / "state").iterdir()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        with self.folder() as folder:
            if dist.get_rank() == 0:
                (folder / "state").mkdir()
                for name, content in state.items():
                    torch.save(content, folder / "state" / name)
            dist.barrier()
            self.wrapped.load_checkpoint(folder, tag="state")

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """A folder that all ranks see."""
        with TemporaryDirectory() as mine:
            shared = [mine]
            dist.broadcast_object_list(shared)
            try:
                yield Path(shared[0])
            finally:
                dist.barrier()  # also if this rank alone refuses a state


class Zero(Engine):
    @property
    def add_param_group(self) -> Any:
        raise AttributeError("its optimizer takes no further group")


LACKS = ("closures", "owns")
LACKS_OF_ZERO = (
    *LACKS,
    "add_param_group",
    {
        "state.reshard[*]": Lack(ZeRORuntimeException, "a checkpoint is for as many ranks as have saved it"),
        "state.strict[optimizer-*]": Lack(NotImplementedError, "the optimizer's state is of one vector for a group"),
    },
)


def subject(stage: int) -> Subject:
    return Subject(
        f"deepspeed.zero{stage}",
        contract="trainer",
        build=type(f"Zero{stage}", (Zero if stage else Engine,), {"stage": stage}),
        declares=frozenset({"same-graph"} if stage else ()),
        lacks=LACKS_OF_ZERO if stage else LACKS,
        known=f"deepspeed_zero{stage}.toml",
        bound=Bound(1e-5, "trained in fp32"),
        warns=("ignore:`torch.distributed.:FutureWarning",),
        package="deepspeed",
    )


@conformance(*map(subject, (0, 1, 2, 3)))
def test_deepspeed(case: Any) -> None:
    case.run()
