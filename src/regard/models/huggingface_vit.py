"""Vision Transformers in other formats: reading and writing of Hugging Face directories and timm state dicts."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from ..core.files import write_text
from ..core.json_files import is_finite_number, read_json_object
from ..core.settings import from_values
from .model_directory import (
    CONFIG,
    block_names,
    class_names,
    fill,
    join_fused,
    label_names,
    read_config,
    read_tensors,
    split_fused,
    tensor_names,
    write,
)
from .transformer import ACTIVATIONS
from .vit import ViT, ViTConfig

SIZES = {"width": "hidden_size", "heads": "num_attention_heads", "hidden": "intermediate_size"}
SIZES |= {"layers": "num_hidden_layers", "channels": "num_channels", "patch": "patch_size"}
SHARES = {"dropout": "hidden_dropout_prob", "attention_dropout": "attention_probs_dropout_prob"}
"""Our settings → their settings."""

HUGGING_FACE = {
    "around_attention.norm": "layernorm_before",
    "attention.query": "attention.attention.query",
    "attention.key": "attention.attention.key",
    "attention.value": "attention.attention.value",
    "attention.out": "attention.output.dense",
    "around_feedforward.norm": "layernorm_after",
    "feedforward.up": "intermediate.dense",
    "feedforward.down": "output.dense",
}
TIMM = {
    "around_attention.norm": "norm1",
    "attention.query": "attn.qkv.0",
    "attention.key": "attn.qkv.1",
    "attention.value": "attn.qkv.2",
    "attention.out": "attn.proj",
    "around_feedforward.norm": "norm2",
    "feedforward.up": "mlp.fc1",
    "feedforward.down": "mlp.fc2",
}
"""Layers of a block: our name → theirs. timm stores q, k, v as one tensor, which is split and joined here."""
_FUSED = ".attn.qkv."


def load_vit(folder: str | Path) -> ViT:
    """Load a Hugging Face directory, `ViTForImageClassification` or `ViTModel`, in evaluation mode.

    Raises:
        ValueError: if the configuration is not of a ViT, or the tensors do not match it. The message lists all
            problems, or the path of a truncated file.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> save_vit(ViT(ViTConfig(classes=2, width=24, heads=3, hidden=48, layers=2)), folder, ["cat", "dog"])
    >>> load_vit(folder).config.classes, labels_of(folder)
    (2, ['cat', 'dog'])
    """
    config, tensors = read_config(folder), read_tensors(folder)
    prefix = "vit." if any(name.startswith("vit.") for name in tensors) else ""
    classified, pooled = "classifier.weight" in tensors, f"{prefix}pooler.dense.weight" in tensors
    ours = _config(config, folder, classified, pooled)
    model = ViT(ours)
    flat = {name: _squeezed(name, value) for name, value in tensors.items()}
    # checkpoints of masked image modelling have a mask token and a decoder
    fill(model, flat, _names(model, prefix), ignored=("*mask_token", "decoder.*", f"{prefix}pooler.*"))
    return model.eval()


def save_vit(model: ViT, folder: str | Path, labels: Sequence[str] = ()) -> None:
    """Write a directory that `transformers` loads: `ViTForImageClassification`, or `ViTModel` without a classifier.

    Raises:
        ValueError: if `transformers` has no counterpart: a stem, mean pooling, sinusoidal positions.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> save_vit(ViT(ViTConfig(classes=2, width=24, heads=3, hidden=48, layers=2)), folder, ["cat", "dog"])
    >>> sorted(path.name for path in Path(folder).iterdir())
    ['config.json', 'model.safetensors']
    """
    ours = model.config
    for name, value, known in (
        ("stem", ours.stem, 0),
        ("pool", ours.pool, "class"),
        ("position", ours.position, "learned"),
    ):
        if value != known:
            raise ValueError(
                f"vit: {name} ({value!r}) must be {known!r} in a Hugging Face directory: its ViT has no other. Train "
                f"with --{name} {known} to export the model."
            )
    if labels and len(labels) != ours.classes:
        raise ValueError(f"vit: labels ({len(labels)}) must be one for each class ({ours.classes}).")
    classified = ours.classes > 0
    names = _names(model, "vit." if classified else "")
    state = model.state_dict()
    tensors = {theirs: _unsqueezed(ours_, state[ours_]) for ours_, theirs in names.items()}
    write(folder, _their_config(ours, labels), tensors)


def scale_of(folder: str | Path, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation of the pixels per channel, from `preprocessor_config.json`; default 0.5.

    Raises:
        ValueError: if the file does not have one number per channel.
    """
    path, half = Path(folder) / "preprocessor_config.json", [0.5] * channels
    stored = read_json_object(path, "how images are scaled", where="vit") if path.exists() else {}
    mean, deviation = (stored.get(name) or half for name in ("image_mean", "image_std"))
    for name, values in (("image_mean", mean), ("image_std", deviation)):
        if not isinstance(values, list) or len(values) != channels or not all(map(is_finite_number, values)):
            raise ValueError(f"vit: {name} ({values!r}) of {path} must be {channels} numbers, one for each channel.")
    return tuple(mean), tuple(deviation)


def save_scale(folder: str | Path, mean: Sequence[float], deviation: Sequence[float], image: tuple[int, int]) -> None:
    """Write `preprocessor_config.json`: size of the images, and mean and standard deviation of their pixels.

    For square models, `transformers` resizes the shorter side and crops the center, as `decode` does. It has no such
    processor for other shapes: it then resizes both sides, and a warning says so.
    """
    height, width = image
    square = height == width
    if not square:
        warnings.warn(
            f"export: image ({height} × {width}) is not square, and transformers resizes images to it without cropping "
            f"them. Crop images to {width}:{height} first. Otherwise predictions differ from those of regard.",
            stacklevel=2,
        )
    settings = {
        # the ViTImageProcessor of transformers 4 does not crop
        "image_processor_type": "BitImageProcessor" if square else "ViTImageProcessor",
        "do_convert_rgb": len(mean) == 3,
        "do_resize": True,
        "size": {"shortest_edge": height} if square else {"height": height, "width": width},
        "resample": 2,  # bilinear
        "do_center_crop": square,
        "crop_size": {"height": height, "width": width},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(mean),
        "image_std": list(deviation),
    }
    write_text(Path(folder) / "preprocessor_config.json", json.dumps(settings, indent=2) + "\n")


def labels_of(folder: str | Path) -> list[str]:
    """Return the class names of a Hugging Face directory, in order; empty if it has none."""
    return class_names(read_config(folder), folder)


def from_timm(
    state: Mapping[str, Tensor],
    *,
    heads: int | None = None,
    image: tuple[int, int] | None = None,
    epsilon: float = 1e-6,
) -> ViT:
    """Build a model from a timm state dict: `from_timm(timm.create_model("vit_tiny_patch16_224").state_dict())`.

    Args:
        state: state dict of a plain ViT, with a class token, or with mean pooling and `fc_norm`.
        heads: number of heads, which a state dict does not contain; default width / 64, as in timm.
        image: height and width for the positions; default a square.
        epsilon: epsilon of the layer norms.

    Raises:
        ValueError: for other architectures. The message lists all missing and unexpected tensors.
    """
    config = _timm_config(state, heads, image, epsilon)
    model = ViT(config)
    flat = {name: _squeezed(name, value) for name, value in split_fused(state, _FUSED).items()}
    fill(model, flat, _timm_names(model))
    return model.eval()


def to_timm(model: ViT) -> dict[str, Tensor]:
    """Return the weights by timm's names, for `load_state_dict` of a model of the same sizes."""
    if model.config.stem:
        raise ValueError(f"vit: stem ({model.config.stem}) must be 0 in a state dict of timm: its ViT has none.")
    if model.config.position != "learned" or model.config.pooler:
        raise ValueError("vit: positions must be learned, and pooler False, in a state dict of timm: its ViT has none.")
    state = model.state_dict()
    tensors = {theirs: _unsqueezed(ours, state[ours]) for ours, theirs in _timm_names(model).items()}
    return join_fused(tensors, _FUSED)


def _names(model: ViT, prefix: str) -> dict[str, str]:
    """Map our parameter names to those of Hugging Face."""
    parts = {"patches": "embeddings.patch_embeddings.projection", "norm": "layernorm", "pooler": "pooler.dense"}
    names = {"first": "embeddings.cls_token", "positions": "embeddings.position_embeddings"}
    names |= tensor_names(parts | block_names(model.config.layers, HUGGING_FACE, "encoder.layer"))
    names = {ours: f"{prefix}{theirs}" for ours, theirs in names.items()} | tensor_names({"classifier": "classifier"})
    return {ours: names[ours] for ours in model.state_dict()}


def _timm_names(model: ViT) -> dict[str, str]:
    """Map our parameter names to those of timm."""
    norm = "norm" if model.config.pool == "class" else "fc_norm"
    parts = {"patches": "patch_embed.proj", "norm": norm, "classifier": "head"}
    names = tensor_names(parts | block_names(model.config.layers, TIMM, "blocks"))
    names |= {"first": "cls_token", "positions": "pos_embed"}
    return {ours: names[ours] for ours in model.state_dict()}


def _squeezed(name: str, value: Tensor) -> Tensor:
    """Convert theirs to ours: a class token (1, 1, W) to (W,), positions (1, T, W) to (T, W)."""
    token, positions = name.endswith("cls_token"), name.endswith(("position_embeddings", "pos_embed"))
    return value.flatten() if token else value.squeeze(0) if positions and value.ndim == 3 else value


def _unsqueezed(name: str, value: Tensor) -> Tensor:
    """Convert ours to theirs."""
    return value[None, None] if name == "first" else value[None] if name == "positions" else value


def _config(stored: Mapping[str, Any], folder: str | Path, classified: bool, pooled: bool) -> ViTConfig:
    if stored.get("model_type") != "vit":
        raise ValueError(f"vit: model_type ({stored.get('model_type')!r}) of {folder} must be 'vit'.")
    required = [*SIZES.values(), "image_size", "hidden_act", "layer_norm_eps"]
    if missing := [name for name in required if name not in stored]:
        raise ValueError(f"vit: config.json of {folder} must have {', '.join(missing)}; got none.")
    if stored["hidden_act"] not in list(ACTIVATIONS):  # a damaged value may be unhashable
        raise ValueError(f"vit: hidden_act ({stored['hidden_act']!r}) must be one of {', '.join(ACTIVATIONS)}.")
    if not stored.get("qkv_bias", True):
        raise ValueError("vit: qkv_bias (False) must be True: all projections have a bias here.")
    if pooled and not classified and stored.get("pooler_act", "tanh") != "tanh":
        raise ValueError(f"vit: pooler_act ({stored['pooler_act']!r}) must be 'tanh'.")
    side = stored["image_size"]
    values = {
        "classes": len(class_names(stored, folder)) or stored.get("num_labels", 2) if classified else 0,
        "image": side if isinstance(side, list) else [side, side],
        "activation": stored["hidden_act"],
        "norm_epsilon": stored["layer_norm_eps"],
        "pooler": pooled and not classified,
        **{ours: stored[theirs] for ours, theirs in SIZES.items()},
        **{ours: stored.get(theirs, 0.0) for ours, theirs in SHARES.items()},
    }
    return from_values(ViTConfig, values, f"{Path(folder) / CONFIG}: ")


def _their_config(ours: ViTConfig, labels: Sequence[str]) -> dict[str, Any]:
    height, width = ours.image
    names = label_names(labels or [f"LABEL_{n}" for n in range(ours.classes)]) if ours.classes else {}
    return {
        "architectures": ["ViTForImageClassification" if ours.classes else "ViTModel"],
        "model_type": "vit",
        "image_size": height if height == width else [height, width],
        "hidden_act": ours.activation,
        "layer_norm_eps": ours.norm_epsilon,
        "qkv_bias": True,
        "pooler_act": "tanh",
        "pooler_output_size": ours.width,
        "dtype": "float32",
        **{theirs: getattr(ours, name) for name, theirs in (SIZES | SHARES).items()},
        **names,
    }


def _timm_config(
    state: Mapping[str, Tensor], heads: int | None, image: tuple[int, int] | None, epsilon: float
) -> ViTConfig:
    required = ("patch_embed.proj.weight", "pos_embed", "blocks.0.mlp.fc1.weight")
    if missing := [name for name in required if name not in state]:
        raise ValueError(f"vit: state ({len(state)} tensors) must be of timm's plain ViT; got no {', '.join(missing)}.")
    width, channels, patch, _ = state["patch_embed.proj.weight"].shape
    first = "cls_token" in state
    patches = state["pos_embed"].shape[1] - first
    side = math.isqrt(patches) * patch
    if image is None and math.isqrt(patches) ** 2 != patches:
        raise ValueError(
            f"vit: image must be given for {patches} patches, which do not form a square: image=(height, width)."
        )
    return ViTConfig(
        classes=len(state["head.weight"]) if "head.weight" in state else 0,
        image=image or (side, side),
        channels=channels,
        patch=patch,
        width=width,
        heads=heads or max(1, width // 64),
        hidden=len(state["blocks.0.mlp.fc1.weight"]),
        layers=len({name.split(".")[1] for name in state if name.startswith("blocks.")}),
        pool="class" if first else "mean",
        norm_epsilon=epsilon,
    )
