"""torchtitan: its llama3 and qwen3, made parallel by their own `parallelize_*`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from everyrank.suites import Subject, conformance
from torch import nn
from torch.distributed.fsdp import FSDPModule

pytest.importorskip("torchtitan", reason="pip install torchtitan")
pytest.importorskip("triton", reason="pip install triton")
import torchtitan.distributed.parallel_dims
from torchtitan.components.loss import IGNORE_INDEX, cross_entropy_loss
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed import ParallelDims
from torchtitan.distributed.utils import set_spmd_backend
from torchtitan.models.common import ComplexRoPE, CosSinRoPE, Embedding, Linear, RMSNorm
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.common.config_utils import make_ffn_config, make_gqa_config
from torchtitan.models.llama3.model import Llama3Model, Llama3TransformerBlock
from torchtitan.models.llama3.parallelize import parallelize_llama
from torchtitan.models.qwen3.model import Qwen3Model, Qwen3TransformerBlock
from torchtitan.models.qwen3.parallelize import parallelize_qwen3

from models import tokens
from models.contract import CONTRACT

# Without an accelerator torchtitan takes CUDA for what there is.
torchtitan.distributed.parallel_dims.device_type = "cpu"

WIDTH, HEAD = 32, 8
DRAWN: dict[str, Any] = {"weight": nn.init.normal_}


def norm(width: int) -> Any:
    return RMSNorm.Config(normalized_shape=width, param_init=DRAWN)


def config(kind: Any, block: Any, rope: Any, **attention: Any) -> Any:
    # Without the masks of its language models, which other kernels have; they were not tried on the CPU.
    def layer() -> Any:
        return block.Config(
            attention_norm=norm(WIDTH),
            ffn_norm=norm(WIDTH),
            attention=make_gqa_config(
                dim=WIDTH,
                n_heads=4,
                n_kv_heads=2,
                head_dim=HEAD,
                wqkv_param_init=DRAWN,
                wo_param_init=DRAWN,
                inner_attention=ScaledDotProductAttention.Config(),
                rope=rope.Config(dim=HEAD, max_seq_len=tokens.TOKENS, theta=10000.0),
                **attention,
            ),
            feed_forward=make_ffn_config(dim=WIDTH, hidden_dim=2 * WIDTH, w1_param_init=DRAWN, w2w3_param_init=DRAWN),
        )

    return kind.Config(
        dim=WIDTH,
        vocab_size=tokens.VOCABULARY,
        tok_embeddings=Embedding.Config(num_embeddings=tokens.VOCABULARY, embedding_dim=WIDTH, param_init=DRAWN),
        norm=norm(WIDTH),
        lm_head=Linear.Config(in_features=WIDTH, out_features=tokens.VOCABULARY, param_init=DRAWN),
        layers=[layer() for _ in range(2)],
    )


def llama3() -> Any:
    return config(Llama3Model, Llama3TransformerBlock, ComplexRoPE, fuse_qkv=True)


def qwen3() -> Any:
    return config(Qwen3Model, Qwen3TransformerBlock, CosSinRoPE, qk_norm=norm(HEAD))


def loss(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return the mean of its own loss, which takes logits whose vocabulary is cut."""
    labels = batch["tokens"].roll(-1, 1)
    labels[:, -1] = IGNORE_INDEX
    return cross_entropy_loss(model(batch["tokens"]), labels) / labels[:, :-1].numel()


#: Why it has not the other modes here. Its attention over ranks is torch's, which takes no kernel of the CPU.
LACKS = {
    **dict.fromkeys(("experts", "fsdp2-experts"), "it has no experts"),
    "pipeline": "its pipeline is not tried here",
    "sequence": "its context parallelism has kernels of CUDA alone",
}


@dataclass(frozen=True)
class Model:
    """The subject's build of a model, with the backend that torchtitan writes its collectives in."""

    config: Callable[[], Any]
    parallelize: Callable[..., Any]
    backend: Any = "partial_dtensor"
    sequence: bool = True

    def __call__(self, mode: str, folder: Path) -> dict[str, Any]:
        if mode not in ("tensor", "fsdp2"):
            raise NotImplementedError(LACKS[mode])
        set_spmd_backend(self.backend)
        size = dist.get_world_size()
        tensor = size if mode == "tensor" else 1
        return {
            "model": self.plain,
            "parallelize": lambda model: self.cut(model, tensor, size // tensor),
            "batch": tokens.batch,
            "loss": loss,
            "split": "none" if mode == "tensor" else "rows",
        }

    def plain(self) -> Any:
        torch.manual_seed(0)
        model = self.config().build()
        model.init_states(buffer_device=torch.device("cpu"))
        return tokens.moved(model)

    def cut(self, model: Any, tensor: int, data: int) -> Any:
        parallelism = ParallelismConfig(
            tensor_parallel_degree=tensor, enable_sequence_parallel=self.sequence, spmd_backend=self.backend
        )
        dimensions = ParallelDims.from_config(parallelism, dist.get_world_size())
        config = self.config()
        config.update_from_config(config=SimpleNamespace(parallelism=parallelism))
        whole = config.build()
        whole.load_state_dict(model.state_dict())
        for name, buffer in model.named_buffers():
            whole.get_buffer(name).copy_(buffer)
        parallel = self.parallelize(
            whole.to(model.norm.weight.dtype),
            parallel_dims=dimensions,
            training=TrainingConfig(mixed_precision_param="float32"),
            parallelism=parallelism,
            compile_config=CompileConfig(),
            ac_config=None,
            dump_folder="",
        )
        # Its trainer divides the loss by the tokens of all ranks, and gradients are summed over them. For a factor of
        # one FSDP2 would ask gloo for a sum that it does not have.
        if data > 1:
            for module in parallel.modules():
                if isinstance(module, FSDPModule):
                    module.set_force_sum_reduction_for_comms(True)
            parallel.register_forward_hook(lambda module, given, logits: Shared.apply(logits, data))
        return parallel.train()


class Shared(torch.autograd.Function):
    """The identity, whose gradient is divided."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, parts: int) -> torch.Tensor:
        ctx.parts = parts
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient / ctx.parts, None


MODELS = {
    "torchtitan.llama3": Model(llama3, parallelize_llama),
    "torchtitan.qwen3": Model(qwen3, parallelize_qwen3),
    "torchtitan.qwen3-without-sequence": Model(qwen3, parallelize_qwen3, sequence=False),
}


@pytest.mark.filterwarnings("ignore")
@conformance(*(Subject(name, CONTRACT, model, package="torchtitan") for name, model in MODELS.items()))
def test_torchtitan(case: Any) -> None:
    case.run()
