"""Build tiny models of every transformers class: a reduced config, random weights, and inputs that it accepts.

Settings are reduced by name (`SIZES`, `PATTERNS`); the config constructors compute values derived from them. No single
rule fits every model, so several reductions are tried in turn, and several sets of inputs for each, until the model
runs.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

VOCABULARY = 128
LENGTH, IMAGE, PATCH, FRAMES, WIDTH = 10, 32, 8, 64, 32
MOST_PARAMETERS = 60_000_000
MOST_PIXELS = 256  # per side; classes that only accept larger images are skipped

SIZES: dict[str, int] = {
    "vocab_size": VOCABULARY,
    "type_vocab_size": 2,
    "head_dim": 8,
    "global_head_dim": 8,
    "attention_head_dim": 8,
    "kv_channels": 8,
    "d_kv": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "qk_head_dim": 12,
    "v_head_dim": 8,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "index_head_dim": 8,
    "index_n_heads": 4,
    "index_topk": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "image_size": IMAGE,
    "patch_size": PATCH,
    "pretrain_image_size": IMAGE,
    "num_mel_bins": 16,
    "max_source_positions": FRAMES // 2,
    "max_target_positions": 64,
    "max_position_embeddings": 64,
    "n_positions": 64,
    "sliding_window": 4,
    "num_queries": 6,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "mamba_d_state": 8,
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "num_kv_shared_layers": 0,
    "first_k_dense_replace": 1,
    "num_nextn_predict_layers": 0,
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": VOCABULARY,
    "query_pre_attn_scalar": 8,
    "max_window_layers": 1,
    "rotary_dim": 4,
}
"""Settings that are replaced by a fixed size."""

PATTERNS: dict[str, int] = {
    r"(num|n)_(.*_)?key_value_heads|num_kv_heads|multi_query_group_num": 2,
    r"(.*_)?(attention_heads|n_heads?|num_heads|num_attention_heads)": 4,
    r"(.*_)?(num_)?(hidden_)?layers|n_layers?|(.*_)?depth|num_(.*_)?blocks": 2,
    r"(n|num)_(.*_)?experts|moe_num_experts": 4,
    r"(.*_)?(intermediate_size|ffn_dim|d_ff|n_inner|mlp_dim|ffn_hidden_size|ffn_size|feed_forward.*)": 48,
    r"(.*_)?(hidden_size|d_model|n_embd|embed_dim|hidden_dim|embedding_size|embedding_dim|proj.*_dim|dim)": WIDTH,
}
"""Settings that are replaced by a size if their name matches a pattern."""


def overrides(config: Any, careful: bool) -> dict[str, Any]:
    """Return constructor arguments that make `config` tiny. `careful` keeps widths and numbers of heads."""
    result: dict[str, Any] = {"pad_token_id": 0}
    tokens = 3
    for name, value in vars(config).items():
        if hasattr(value, "model_type") and hasattr(value, "to_dict"):
            result[name] = {"model_type": value.model_type, **overrides(value, careful)}
        elif name.endswith(("_token_id", "_token_index")) and type(value) is int:
            fixed = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
            result[name] = fixed.get(name, tokens)
            tokens += name not in fixed
        elif name == "depths":
            result[name] = [1] * len(value)
        elif name == "image_size" and isinstance(value, list | tuple):
            result[name] = [IMAGE] * len(value)
        elif type(value) is int and value > 0 and not name.startswith("_"):
            size = _size(name, config, careful)
            if size is not None and size < value:
                result[name] = size
    return result


def _size(name: str, config: Any, careful: bool) -> int | None:
    if name == "head_dim" and hasattr(config, "qk_rope_head_dim"):
        return SIZES["qk_rope_head_dim"]  # the rotated part of a head
    if name in SIZES and not (careful and re.search("head|rank|scalar|size", name) and "vocab" not in name):
        return SIZES[name]
    for index, (pattern, size) in enumerate(PATTERNS.items()):
        if re.fullmatch(pattern, name):
            return size if not careful or index in (2, 3) else None
    return None


def configs(cls: Any) -> Iterator[Any]:
    """Yield reduced configs of a model class, smallest first. Configs that cannot be constructed are skipped."""
    for careful, layers, width in ((False, 2, 32), (True, 2, 32), (False, 8, 32), (False, 2, 64)):
        try:
            base = cls.config_class()
        except Exception:  # the config class has required arguments
            return
        changed = _with_width(overrides(base, careful), width)
        if "num_hidden_layers" in changed:
            changed["num_hidden_layers"] = layers  # in hybrid models, the first few layers may all have the same type
        try:
            yield cls.config_class(**copy.deepcopy(changed))
        except Exception:  # the constructor rejects the combination: set the attributes of a default config instead
            with contextlib.suppress(Exception):
                yield _set_attributes(base, changed)


def _with_width(changed: dict[str, Any], width: int) -> dict[str, Any]:
    """Return a copy with another width. Some classes compute their number of heads from it."""
    result: dict[str, Any] = {}
    for name, value in changed.items():
        wide = value == WIDTH and name != "image_size"
        result[name] = _with_width(value, width) if isinstance(value, dict) else width if wide else value
    return result


def _set_attributes(config: Any, changed: dict[str, Any]) -> Any:
    for name, value in changed.items():
        if isinstance(value, dict):
            _set_attributes(getattr(config, name), {k: v for k, v in value.items() if k != "model_type"})
        else:
            setattr(config, name, value)
    for name in ("layer_types", "mlp_layer_types"):
        kinds, layers = getattr(config, name, None), getattr(config, "num_hidden_layers", None)
        if isinstance(kinds, list) and isinstance(layers, int):
            setattr(config, name, kinds[:layers])
    return config


def build(cls: Any, config: Any, implementation: str) -> nn.Module:
    """Build the model of a config with seeded random weights, and raise MemoryError if it is not tiny."""
    with torch.device("meta"):
        empty = cls._from_config(copy.deepcopy(config), attn_implementation="eager")
    count = sum(parameter.numel() for parameter in empty.parameters())
    if count > MOST_PARAMETERS:
        raise MemoryError(f"{cls.__name__}: parameters must be at most {MOST_PARAMETERS}; got {count}")
    torch.manual_seed(0)
    model: nn.Module = cls._from_config(copy.deepcopy(config), attn_implementation=implementation)
    return model.eval()


def randomize(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.ndim > 1 and parameter.is_floating_point():
            width = parameter.numel() // max(1, len(parameter))
            parameter.data.normal_(std=min(0.3, 1.5 / max(1, width) ** 0.5), generator=generator)


def find(config: Any, *names: str, default: Any = None) -> Any:
    """Return the first of the settings that exists in a config or in one of its sub-configs."""
    for name in names:
        if isinstance(getattr(config, name, None), int | tuple | list):
            return getattr(config, name)
    for part in vars(config).values():
        if hasattr(part, "model_type") and (value := find(part, *names)) is not None:
            return value
    return default


def text(config: Any) -> dict[str, Tensor]:
    vocabulary = min(find(config, "vocab_size", default=VOCABULARY), 4 * VOCABULARY)
    low = min(40, vocabulary // 2)
    ids = torch.randint(low, vocabulary, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[-1, -2:] = 0
    ids[-1, -2:] = 0
    ids[:, -1] = 2
    return {"input_ids": ids, "attention_mask": mask}


def images(config: Any) -> dict[str, Tensor]:
    size = find(config, "image_size", "pretrain_image_size", default=IMAGE)
    sides = size if isinstance(size, tuple | list) else [size]
    height, width = min(sides[0], MOST_PIXELS), min(sides[-1], MOST_PIXELS)
    channels = find(config, "num_channels", "in_channels", "in_chans", default=3)
    channels = channels if isinstance(channels, int) else 3
    pixels = torch.randn(2, channels, height, width, generator=torch.Generator().manual_seed(2))
    return {"pixel_values": pixels}


def videos(config: Any) -> dict[str, Tensor]:
    frames = find(config, "num_frames", default=4)
    pixels = images(config)["pixel_values"]
    return {"pixel_values": pixels[:, None].expand(-1, frames, -1, -1, -1).clone()}


def sounds(config: Any, frames: int = FRAMES, transposed: bool = False) -> dict[str, Tensor]:
    bins = find(config, "num_mel_bins", "input_feat_per_channel", "feature_size", "input_dim", default=16)
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(2, bins, frames, generator=generator)
    features = features if transposed else features.transpose(1, 2)
    mask = torch.ones(2, frames, dtype=torch.long)
    mask[-1, -8:] = 0
    return {"input_features": features, "attention_mask": mask}


def waves(config: Any, length: int = 4000) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(4)
    mask = torch.ones(2, length, dtype=torch.long)
    mask[-1, -length // 4 :] = 0
    return {"input_values": torch.randn(2, length, generator=generator), "attention_mask": mask}


def candidates(model: Any) -> Iterator[dict[str, Any]]:
    """Yield inputs that a model may accept, starting with those that exercise most of it."""
    config = model.config
    names = set(inspect.signature(model.forward).parameters)
    decoder = {"decoder_input_ids": text(config)["input_ids"][:, :7]} if "decoder_input_ids" in names else {}
    if "input_ids" in names:
        if "pixel_values" in names:
            yield {**text(config), **images(config), **decoder}
        yield {**text(config), **decoder}
        yield {**text(config), "decoder_input_ids": text(config)["input_ids"]}
        yield {name: value[:, None] for name, value in text(config).items()}  # multiple choice
    if "pixel_values" in names:
        yield {**images(config), **decoder}
        yield {**videos(config), **decoder}
    if "input_features" in names:
        for transposed in (True, False):
            for mask in (True, False):
                for frames in (FRAMES, 2 * FRAMES):
                    sound = sounds(config, frames, transposed)
                    if not mask or "attention_mask" not in names:
                        del sound["attention_mask"]
                    yield {**sound, **decoder}
    if "input_values" in names:
        if "attention_mask" in names:
            yield {**waves(config), **decoder}
        yield {"input_values": waves(config)["input_values"], **decoder}
        yield {"input_values": waves(config)["input_values"][:, None], **decoder}
        frames = find(config, "max_length", default=FRAMES)
        yield {"input_values": sounds(config, frames)["input_features"], **decoder}
    if "inputs_embeds" in names:
        width = find(config, "hidden_size", "d_model", default=32)
        embeddings = torch.randn(2, LENGTH, width, generator=torch.Generator().manual_seed(5))
        yield {"inputs_embeds": embeddings}
    if "hidden_states" in names:
        width = find(config, "hidden_size", "d_model", default=32)
        yield {"hidden_states": torch.randn(2, LENGTH, width, generator=torch.Generator().manual_seed(5))}
