"""Any model type of transformers, tiny and random: its own config class, scaled down by rule."""

from __future__ import annotations

import dataclasses
import importlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

# Nothing is to be looked up on a hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCABULARY, ROWS, TOKENS = 64, 8, 12

#: Fields of configs, by their names, and the largest value that a tiny model has of each. The first that fits counts.
#: A field that is None, smaller, or no number is left alone.
SIZES: tuple[tuple[str, int], ...] = (
    (r"vocab_size|.*_vocab_size|vocab_size_.*|codebook_size|unpadded_vocab_size|ngram_vocab_size_base", VOCABULARY),
    (r".*_token_id|.*_token_index|audio_stream_.*_id|seed", VOCABULARY - 1),
    (
        r"(max|n|original_max)_.*positions?(_embeddings)?|n_positions|n_ctx|.*_position_embeddings|rel_extent",
        VOCABULARY,
    ),
    (r"(num|n)_(hidden_|input_|output_|recurrent_)?layers?|depth|max_window_layers", 2),
    (r"(num|n|swa_num)_(key_value|kv)_heads|.*num_key_value_heads|linear_num_key_heads|indexer_kv_heads", 2),
    (r".*heads?(_per_ngram)?|n_head|num_attention_heads|index_n_heads|mamba_n_heads", 4),
    (r".*head_dim|rotary_dim|d_rel|mamba_d_head|mamba_d_state|ssm_state_size|.*_head_size", 8),
    (r"num_experts|num_local_experts|n_routed_experts|moe_num_experts|zero_expert_num", 4),
    (r"num_experts_per_tok|moe_top_?k|moe_k|top_k_experts", 2),
    (r"n_group|n_groups|o_groups", 2),
    (r"topk_group|first_k_dense_replace|num_dense_layers|moe_layer_start_index|num_nextn_predict_layers", 1),
    (r"num_mtp_layers|num_kv_shared_layers", 0),
    (r".*(intermediate|ffn|dense_intermediate)_.*size.*|.*_expert_dim|n_inner|mamba_d_ssm|.*expert_ffn.*", 64),
    (r".*(_rank|_lowrank)", 8),
    (
        r"sliding_window(_size)?|attention_chunk_size|keep_window_size|index_topk|.*chunk_size|block_size|index_block_size",
        8,
    ),
    (r"hidden_size_per_layer_input|ple_embed_dim", 8),
    (
        r"hidden_size|n_embd|embed_dim|embedding_dim|.*hidden_size|(projector|vision)_(in|out)put_dim|adapter_.*_dim",
        32,
    ),
    (r"image_size", 16),
    (r"patch_size", 4),
    (r"pos_emb_(height|width)", 4),
)

#: What a tiny model has otherwise than by rule: of fields of any config, and of those of one model type.
EVERYWHERE: Mapping[str, Any] = {"use_cache": False}
#: What is None in the class of a config, and would follow from sizes that a tiny model does not have.
UNSET: Mapping[str, Any] = {"head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2}
#: Of configs with three kinds of positions: how many pairs of a head's features each kind has.
_POSITIONS = {
    (1, 1, 0): ("glm4v_moe_text", "glm4v_text", "glm_image_text", "glm_ocr_text"),
    (2, 1, 1): (
        "cosmos3_edge_text",
        "hy_v4_vl_text",
        "paddleocr_vl_text",
        "qwen2_5_omni_text",
        "qwen2_5_vl_text",
        "qwen2_vl_text",
    ),
}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
EXCEPTIONS: Mapping[str, Mapping[str, Any]] = {
    **{
        name: {"rope_parameters": {**_ROPE, "mrope_section": [*cut], "partial_rotary_factor": sum(cut) / 4}}
        for cut, names in _POSITIONS.items()
        for name in names
    },
    # A model of more than ten layers is sparse by default.
    "gemma3n_text": {"activation_sparsity_pattern": [0.5, 0.0]},
    # The layers with a window have sizes of their own, and other ones: that is what the plan stumbles over.
    "dots3_note_text": {
        **dict.fromkeys(("swa_num_attention_heads", "swa_num_key_value_heads"), 4),
        **dict.fromkeys(("swa_q_lora_rank", "swa_kv_lora_rank", "swa_qk_nope_head_dim", "swa_v_head_dim"), 8),
        "swa_head_dim": 24,
    },
    "glm5_next_text": {"index_kpool": 4},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    # The norms over heads are a matter of the checkpoint: the large one has them.
    "glm4_moe": {"use_qk_norm": True},
    "phi": {"qk_layernorm": True},
    # One expert, by default, cannot be shared out.
    "hunyuan_v1_moe": {"num_experts": 4, "moe_topk": 2},
}

#: The classes that make a model of a config, the one that is trained first.
AUTO = ("AutoModelForCausalLM", "AutoModelForImageTextToText", "AutoModelForMaskedLM", "AutoModel")


def model_types() -> list[str]:
    """Return every model type of the installed transformers whose config has a tensor or an expert parallel plan."""
    return [name for name in CONFIG_MAPPING if any(plan(name, kind) for kind in ("tp", "ep"))]


def plan(model_type: str, kind: str) -> Mapping[str, Any]:
    """Return a plan of a model type: ``tp``, ``ep``, ``fsdp`` or ``pp``."""
    return getattr(CONFIG_MAPPING[model_type], f"base_model_{kind}_plan", None) or {}


def config(model_type: str) -> Any:
    """Return the config of a tiny model."""
    return _scaled(CONFIG_MAPPING[model_type], {"attn_implementation": "eager", "experts_implementation": "eager"})


def _scaled(kind: Any, more: Mapping[str, Any]) -> Any:
    sizes = dict(_sizes(kind))
    sizes |= {
        name: _scaled(inner, {}) for name, inner in getattr(kind, "sub_configs", {}).items() if _is_config(inner)
    }
    fields = {each.name for each in dataclasses.fields(kind)}
    sizes |= {name: value for name, value in EVERYWHERE.items() if name in fields}
    sizes |= EXCEPTIONS.get(kind.model_type, {})
    return kind(**_of_each_kind(kind, sizes), **more)


def _is_config(kind: Any) -> bool:
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def _sizes(kind: Any) -> Iterator[tuple[str, Any]]:
    defaults = {each.name: each.default for each in dataclasses.fields(kind)}
    for name, default in defaults.items():
        if isinstance(default, float) and re.search(r"dropout|pdrop|jitter", name):
            yield name, 0.0
        if default is None and name in UNSET:
            yield name, UNSET[name]
        if not isinstance(default, int) or isinstance(default, bool):
            continue
        size = next((size for pattern, size in SIZES if re.fullmatch(pattern, name)), default)
        # As many heads of keys as of queries, if the model type has it so.
        if "num_key_value_heads" in name and default == defaults.get(name.replace("key_value", "attention")):
            size = 4
        if size < default:
            yield name, size


def _of_each_kind(kind: Any, sizes: dict[str, Any]) -> dict[str, Any]:
    """Choose layers so that each kind of layer that the full model has is there once."""
    full = kind()
    values = vars(full)
    many = values.get("num_hidden_layers")
    if not isinstance(many, int) or "num_hidden_layers" not in sizes:
        return sizes
    lists = {
        each.name: value
        for each in dataclasses.fields(kind)
        if isinstance(value := values.get(each.name), list) and len(value) == many and each.name not in sizes
    }
    lists = {name: value for name, value in lists.items() if all(isinstance(one, str) for one in value)}
    if not lists:
        return sizes
    seen: dict[tuple[Any, ...], int] = {}
    for layer in range(many):
        seen.setdefault(tuple(value[layer] for value in lists.values()), layer)
    layers = sorted(seen.values())
    layers += [many - 1] * (2 - len(layers))
    return {
        **sizes,
        "num_hidden_layers": len(layers),
        **{name: [value[layer] for layer in layers] for name, value in lists.items()},
    }


def of_config(config: Any) -> Any:
    """Return a model with random weights: what begins as ones or zeros, too, as no mistake in it would be seen."""
    torch.manual_seed(0)
    kind = model_class(config)
    model = (kind.from_config(config) if hasattr(kind, "from_config") else kind(config)).train()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.add_(0.05 * torch.randn(parameter.shape, dtype=parameter.dtype))
    return model


def model_class(config: Any) -> Any:
    """Return the class that makes a model of a config: an Auto class, or the first model with such a config."""
    for name in AUTO:
        if type(config) in getattr(transformers, name)._model_mapping:
            return getattr(transformers, name)
    module = importlib.import_module(type(config).__module__.replace("configuration_", "modeling_"))
    kinds = [kind for kind in vars(module).values() if getattr(kind, "config_class", None) is type(config)]
    named = [kind for kind in kinds if kind.__module__ == module.__name__ and "PreTrained" not in kind.__name__]
    named.sort(key=lambda kind: "ForCausalLM" not in kind.__name__)
    if not named:
        raise NotImplementedError(f"no class makes a model of a {type(config).__name__}")
    return named[0]


def inputs(model: Any) -> Callable[[int], dict[str, torch.Tensor]]:
    """Return the function that makes the batch of a step."""
    if model.main_input_name != "input_ids":
        raise ValueError(f"no rule makes {model.main_input_name} of a {type(model).__name__}")

    def batch(step: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(step)
        return {"input_ids": torch.randint(0, VOCABULARY, (ROWS, TOKENS), generator=generator)}

    return batch
