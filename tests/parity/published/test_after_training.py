"""What comes after training, by a library's own files: `save_pretrained`, and its shards of safetensors."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from everyrank.parity import Strayed, Unlike, handover, reshard
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import parallelize_module

from tests.parity.published.models import QWEN3, batch, loss
from tests.parity.published.ways import Tensor

pytest.importorskip("transformers", reason="transformers is not installed: make test-models")

# transformers warns of its own ways, and leaves groups and a progress bar's thread behind.
pytestmark = pytest.mark.filterwarnings("ignore")

#: So small that a model has several files.
_SHARD = "50KB"
_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
Change = Callable[[dict[str, torch.Tensor]], None]


def _right(state: dict[str, torch.Tensor]) -> None:
    pass


def _loses_a_head_norm(state: dict[str, torch.Tensor]) -> None:
    state["model.layers.1.self_attn.q_norm.weight"].fill_(1)


def _exchanges_gate_and_up(state: dict[str, torch.Tensor]) -> None:
    up, gate = (f"model.layers.0.mlp.{name}_proj.weight" for name in ("up", "gate"))
    state[up], state[gate] = state[gate], state[up]


def _read(path: str) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    found: dict[str, torch.Tensor] = {}
    files = sorted(Path(path).glob("*.safetensors"))
    assert len(files) > 1
    for file in files:
        found |= load_file(file)
    return found


# --- handover ----------------------------------------------------------------------------------------------------


def _by_files(folder: Path, change: Change) -> Callable[[Any, Any], None]:
    """Return a way from a trainer to an engine: a folder, and a file of it that somebody has changed."""

    def transfer(model: Any, other: Any) -> None:
        state = {name: value.clone() for name, value in model.state_dict().items()}
        change(state)
        model.save_pretrained(folder, state_dict=state, max_shard_size=_SHARD)
        other.load_state_dict(_read(str(folder)))

    return transfer


def _logits(model: Any, inputs: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = model(inputs).logits
    return found


def _hand_over(folder: Path, change: Change) -> Any:
    return handover(
        model=QWEN3.build,
        other=QWEN3.build,
        transfer=_by_files(folder, change),
        inputs=batch(0)["tokens"],
        forward=_logits,
    )


def test_a_folder_of_shards_hands_a_model_over(tmp_path: Path) -> None:
    report = _hand_over(tmp_path, _right)
    assert (report.passed, report.traced) == (True, report.elements)


@pytest.mark.parametrize(
    ("change", "begins"),
    [
        (
            _loses_a_head_norm,
            r"handover: `model\.layers\.1\.self_attn\.q_norm\.weight` is lost: nothing of the other",
        ),
        (
            _exchanges_gate_and_up,
            r"handover: `model\.layers\.0\.mlp\.gate_proj\.weight`\[0, 0\] of the other has `model\.layers\.0\.mlp\.",
        ),
    ],
    ids=["loses a head norm", "exchanges gate and up"],
)
def test_a_mistake_on_the_way_is_named(change: Change, begins: str, tmp_path: Path) -> None:
    with pytest.raises(Unlike) as caught:
        _hand_over(tmp_path, change)
    assert re.match(begins, str(caught.value)), str(caught.value)


# --- reshard -----------------------------------------------------------------------------------------------------


class Pretrained:
    """Weights by `save_pretrained`, from the first rank; what the optimizer keeps beside them, whole."""

    def save(self, model: Any, optimizer: Any, path: str) -> None:
        weights = get_model_state_dict(model, options=_WHOLE)
        kept = get_optimizer_state_dict(model, optimizer, options=_WHOLE)
        if dist.get_rank() == 0:
            self.change(weights)
            QWEN3.build().save_pretrained(path, state_dict=weights, max_shard_size=_SHARD)
            torch.save(kept, os.path.join(path, "optimizer.pt"))

    def change(self, weights: dict[str, torch.Tensor]) -> None:
        """Leave what is saved as it is."""

    def load(self, model: Any, optimizer: Any, path: str) -> None:
        set_model_state_dict(model, _read(path), options=_WHOLE)
        kept = torch.load(os.path.join(path, "optimizer.pt"))
        set_optimizer_state_dict(model, optimizer, kept, options=_WHOLE)


class RoundsToBfloat16(Pretrained):
    """As those do who publish what they have trained, and then train on."""

    def change(self, weights: dict[str, torch.Tensor]) -> None:
        weights |= {name: value.bfloat16().to(value.dtype) for name, value in weights.items()}


def _sharded(model: Any) -> Any:
    for layer in QWEN3.layers(model):
        fully_shard(layer)
    return fully_shard(model)


def _tensor_parallel(model: Any) -> Any:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    way = object.__new__(Tensor)
    way.published = QWEN3
    for layer in QWEN3.layers(model):
        parallelize_module(layer, mesh, way.rules())
        for name in QWEN3.head_norms:
            way.reduce(layer.get_submodule(name), mesh.get_group())
    return model


def _go_on(way: Pretrained) -> Any:
    return reshard(
        model=QWEN3.build, batch=batch, loss=loss,
        layouts=[(2, _sharded), (2, _tensor_parallel), (1, lambda model: model)],
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2), save=way.save, load=way.load,
    )  # fmt: skip


@pytest.mark.world(2)
def test_a_training_goes_on_from_a_folder_of_shards(process_group: Any) -> None:
    assert _go_on(Pretrained()).passed


@pytest.mark.world(2)
def test_a_training_does_not_go_on_from_rounded_weights(process_group: Any) -> None:
    with pytest.raises(Strayed, match=r"^reshard: `model\.embed_tokens\.weight` has .*after load= in layout 2"):
        _go_on(RoundsToBfloat16())
